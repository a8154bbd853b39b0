"""Find the bounds of a loop's carried tiles that can be applied once, after the loop.

Masked-off lanes of what an iteration yields keep what was carried. A select in each iteration does
so, and is slow for the accumulators of dots. Where a bound is the same in all iterations, its lanes
hold their first values in the end; one select after the loop gives them these, if what the lanes
hold in between reaches no other lane. That is followed here from op to op, lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from turbine.algebra import Expr
from turbine.kernel.lang import arithmetic, casting, functions, memory, products, reductions, shapes
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.trace.op import Op, arguments, options
from turbine.kernel.trace.types import TileType
from turbine.kernel.trace.validity import Bound

# The offset and the limit of a bound.
Key = tuple[Expr, Expr]
# The axes along which the lanes outside of a bound hold anything, for each node.
Axes = dict[fx.Node, set[int]]


def hoisted_bounds(body: Body) -> list[list[Bound]]:
    """For each carried tile, the bounds that can be applied after the loop."""
    keys = {(b.offset, b.limit) for valid in body.valid for b in valid.bounds if _is_fixed(b, body)}
    kept = {key for key in keys if _stays_in_lanes(body, key)}
    return [
        [b for b in valid.bounds if b.axis is not None and (b.offset, b.limit) in kept]
        for valid in body.valid
    ]


def _is_fixed(bound: Bound, body: Body) -> bool:
    """Whether a bound is the same in all iterations."""
    computed = {n.args[1] for n in body.graph.nodes if n.target is memory.to_index}
    symbols = bound.offset.symbols | bound.limit.symbols
    return bound.axis is not None and symbols.isdisjoint({body.counter, *computed})


def _stays_in_lanes(body: Body, key: Key) -> bool:
    """Whether lanes outside of a bound affect only such lanes of tiles that are carried."""
    places = [node for node in body.graph.nodes if node.op == "placeholder"]
    bounded = zip(places, (_axes_of(valid.bounds, key) for valid in body.valid), strict=False)
    free: Axes = {place: axes for place, axes in bounded if axes}
    for node in body.graph.nodes:
        if node.op == "call_function" and not free.keys().isdisjoint(node.all_input_nodes):
            axes = _follow(node, free, key)
            if axes is None:
                return False
            if axes:
                free[node] = axes
    return all(
        free.get(node, set()) <= _axes_of(valid.bounds, key) and free.keys().isdisjoint(valid.masks)
        for node, valid in zip(output_of(body.graph), body.valid, strict=True)
    )


def _axes_of(bounds: Sequence[Bound], key: Key) -> set[int]:
    return {b.axis for b in bounds if b.axis is not None and (b.offset, b.limit) == key}


def _follow(node: fx.Node, free: Axes, key: Key) -> set[int] | None:
    """The axes of a node's free lanes; None if they may affect other lanes."""
    op = node.target
    assert isinstance(op, Op)
    masks = options(node).get("masks", ())
    if any(free.keys() & set(_flat(masks))):
        return None
    if op in _LANE_BY_LANE or op.kind == "pointwise":
        return _aligned(node, free)
    rule = _RULES.get(op)
    return None if rule is None else rule(node, free, key)


def _flat(masks: Any) -> Iterator[fx.Node]:
    for mask in masks:
        if isinstance(mask, fx.Node):
            yield mask
        else:
            yield from _flat(mask)


def _aligned(node: fx.Node, free: Axes) -> set[int] | None:
    """Lanes of operands are those of the result, with axes aligned at the last."""
    type: TileType = node.meta["type"]
    found = set()
    for operand in node.all_input_nodes:
        own: TileType = operand.meta["type"]
        for axis in free.get(operand, ()):
            place = axis + type.rank - own.rank
            if own.shape[axis] != type.shape[place]:
                return None
            found.add(place)
    return found


def _moved(axis_of: Callable[[tuple[Any, ...], int], int | None]) -> Rule:
    def rule(node: fx.Node, free: Axes, key: Key) -> set[int] | None:
        operand, *rest = arguments(node)
        axes = {axis_of(tuple(rest), axis) for axis in free[operand]}
        return None if None in axes else {axis for axis in axes if axis is not None}

    return rule


def _squeezed(rest: tuple[Any, ...], axis: int) -> int | None:
    (place,) = rest
    return None if axis == place else axis - (axis > place)


def _reduced(node: fx.Node, free: Axes, key: Key) -> set[int] | None:
    operand, along = arguments(node)[:2]
    bounded = _axes_of(options(node)["bounds"], key)
    if any(axis in along and axis not in bounded for axis in free[operand]):
        return None
    kept = {axis for axis in free[operand] if axis not in along}
    return {axis - len([one for one in along if one < axis]) for axis in kept}


def _dot(node: fx.Node, free: Axes, key: Key) -> set[int] | None:
    left, right, start = arguments(node)
    rank = node.meta["type"].rank
    found = set(free.get(start, ()))
    for operand, summed, bounds in zip(
        (left, right), (rank - 1, rank - 2), options(node)["bounds"], strict=True
    ):
        axes = free.get(operand, set())
        if summed in axes - _axes_of(bounds, key):
            return None
        found |= axes - {summed}
    return found


def _filled(node: fx.Node, free: Axes, key: Key) -> set[int] | None:
    operand, other = arguments(node)
    bounded = _axes_of(options(node)["bounds"], key)
    return (free.get(operand, set()) - bounded) | free.get(other, set())


Rule = Callable[[fx.Node, Axes, Key], set[int] | None]
_LANE_BY_LANE = frozenset(
    (
        *(arithmetic.where, arithmetic.minimum, arithmetic.maximum, arithmetic.clamp),
        *(arithmetic.fma, arithmetic.pow, arithmetic.logical_and, arithmetic.logical_or),
        *(arithmetic.logical_not, functions.floor, functions.ceil, functions.round),
        *(functions.trunc, casting.to_dtype, casting.bitcast, shapes.broadcast_to),
    )
)
_REDUCTIONS = (
    *(reductions.sum, reductions.prod, reductions.max, reductions.min),
    *(reductions.any, reductions.all, reductions.argmax, reductions.argmin),
)
_RULES: dict[Op, Rule] = {
    shapes.expand_dims: _moved(lambda rest, axis: axis + (axis >= rest[0])),
    shapes.squeeze: _moved(_squeezed),
    shapes.transpose: _moved(lambda rest, axis: rest[0].index(axis)),
    memory.fill_missing: _filled,
    products.dot: _dot,
    **dict.fromkeys(_REDUCTIONS, _reduced),
}
