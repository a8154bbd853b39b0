"""Find index tiles that are affine in the lane: `i * B + tkl.arange(B)` is contiguous.

A gather or scatter at such tiles becomes a load or store of a block, and the mask `offsets < n`
becomes a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine.algebra import ONE, Expr, as_expr, is_never_negative
from turbine.kernel.lang import arithmetic, casting, constants, creation, shapes
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.tracer import Tile
from turbine.kernel.trace.validity import Bound


@dataclass(frozen=True)
class Affine:
    """base + the sum of lane * step over the axes."""

    base: Expr
    steps: tuple[int, ...]


def affine_of(node: fx.Node) -> Affine | None:
    """The affine form of a tile of integers, if it has one."""
    outer = node.meta.get("stands_for")
    if outer is not None:
        return affine_of(outer)
    rule = _RULES.get(node.target) if isinstance(node.target, Op) else None
    return None if rule is None else rule(node)


def _constant(node: fx.Node) -> Affine | None:
    number, type = node.args[2], node.meta["type"]
    if not isinstance(number, int) or type.dtype.kind == "float":
        return None
    return Affine(as_expr(number), (0,) * type.rank)


def _from_index(node: fx.Node) -> Affine | None:
    expr, _ = node.args
    if not isinstance(expr, Expr) or node.meta["type"].dtype.kind == "float":
        return None
    return Affine(expr, ())


def _arange(node: fx.Node) -> Affine | None:
    start = node.args[1]
    if not isinstance(start, Expr) or node.meta["type"].dtype.kind == "float":
        return None
    return Affine(start, (1,))


def _sum(sign: int) -> Callable[[fx.Node], Affine | None]:
    def rule(node: fx.Node) -> Affine | None:
        found = _operands(node)
        if found is None:
            return None
        x, y = found
        steps = tuple(a + sign * b for a, b in zip(x.steps, y.steps, strict=True))
        return Affine(x.base + y.base * sign, steps)

    return rule


def _product(node: fx.Node) -> Affine | None:
    found = _operands(node)
    if found is None:
        return None
    for one, other in (found, found[::-1]):
        number = other.base.number
        if number is not None and not any(other.steps):
            return Affine(one.base * number, tuple(step * number for step in one.steps))
    if any(found[0].steps) or any(found[1].steps):
        return None
    return Affine(found[0].base * found[1].base, found[0].steps)


def _operands(node: fx.Node) -> tuple[Affine, Affine] | None:
    """The affine forms of both operands, padded to the rank of the result."""
    rank = node.meta["type"].rank
    found = [affine_of(operand) for operand in node.args if isinstance(operand, fx.Node)]
    one, other = found
    if one is None or other is None:
        return None
    return _pad(one, rank), _pad(other, rank)


def _pad(affine: Affine, rank: int) -> Affine:
    return Affine(affine.base, (0,) * (rank - len(affine.steps)) + affine.steps)


def _apply_view(
    steps: Callable[[tuple[int, ...], Sequence[Any]], tuple[int, ...]],
) -> Callable[[fx.Node], Affine | None]:
    def rule(node: fx.Node) -> Affine | None:
        operand = node.args[0]
        assert isinstance(operand, fx.Node)
        inner = affine_of(operand)
        return None if inner is None else Affine(inner.base, steps(inner.steps, node.args[1:]))

    return rule


def _cast(node: fx.Node) -> Affine | None:
    operand = node.args[0]
    assert isinstance(operand, fx.Node)
    wide = all(n.meta["type"].dtype.name in ("int32", "int64") for n in (operand, node))
    return affine_of(operand) if wide else None


_RULES: dict[Op, Callable[[fx.Node], Affine | None]] = {
    constants.constant: _constant,
    constants.from_index: _from_index,
    creation.arange: _arange,
    casting.to_dtype: _cast,
    arithmetic.add: _sum(1),
    arithmetic.sub: _sum(-1),
    arithmetic.mul: _product,
    shapes.expand_dims: _apply_view(lambda steps, rest: (*steps[: rest[0]], 0, *steps[rest[0] :])),
    shapes.squeeze: _apply_view(lambda steps, rest: steps[: rest[0]] + steps[rest[0] + 1 :]),
    shapes.broadcast_to: _apply_view(lambda steps, rest: steps),
    shapes.transpose: _apply_view(lambda steps, rest: tuple(steps[axis] for axis in rest[0])),
}


@dataclass(frozen=True)
class Block:
    """A block of a buffer: its offsets, and the axis of the index tiles for each axis."""

    offsets: tuple[Expr, ...]
    axes: tuple[int | None, ...]


def block_of(index: Sequence[Tile], shape: Sequence[Expr]) -> Block | None:
    """The block that index tiles of this shape address; None if it is not a block."""
    offsets: list[Expr] = []
    axes: list[int | None] = []
    for tile in index:
        affine = affine_of(tile.node)
        if affine is None or tile.valid:
            return None
        padded = _pad(affine, len(shape))
        moving = [axis for axis, step in enumerate(padded.steps) if step and shape[axis] != ONE]
        if len(moving) > 1 or any(padded.steps[axis] != 1 for axis in moving):
            return None
        offsets.append(affine.base)
        axes.append(moving[0] if moving else None)
    used = [axis for axis in axes if axis is not None]
    wide = [axis for axis, size in enumerate(shape) if size != ONE]
    return Block(tuple(offsets), tuple(axes)) if sorted(used) == wide else None


def bounds_of(mask: Tile) -> tuple[Bound, ...] | None:
    """Convert a mask to bounds, if it is `offsets < n` or a conjunction of these."""
    return _bounds(mask.node) if not mask.valid else None


def _bounds(node: fx.Node) -> tuple[Bound, ...] | None:
    outer = node.meta.get("stands_for")
    if outer is not None:
        return _bounds(outer)
    if node.target in (arithmetic.bitwise_and, arithmetic.logical_and):
        return _both(node)
    if node.target not in _LIMITS or node.meta["type"].dtype.kind != "bool":
        return None
    swap, more = _LIMITS[node.target]
    found = _operands(node)
    if found is None:
        return None
    lanes, limit = found[::-1] if swap else found
    moving = [axis for axis, step in enumerate(lanes.steps) if step]
    if any(limit.steps) or len(moving) != 1 or lanes.steps[moving[0]] != 1:
        return None
    if not is_never_negative(lanes.base, tracer.current("a mask").ranges):
        return None
    return (Bound(moving[0], lanes.base, limit.base + more),)


def _both(node: fx.Node) -> tuple[Bound, ...] | None:
    parts: list[Bound] = []
    for operand in node.args:
        assert isinstance(operand, fx.Node)
        offset = node.meta["type"].rank - operand.meta["type"].rank
        found = _bounds(operand)
        if found is None:
            return None
        for bound in found:
            assert bound.axis is not None
            parts.append(Bound(bound.axis + offset, bound.offset, bound.limit))
    return tuple(parts)


# Comparisons that bound lanes: whether the lanes are on the right, what is added to the limit.
_LIMITS = {
    arithmetic.less: (False, 0),
    arithmetic.less_equal: (False, 1),
    arithmetic.greater: (True, 0),
    arithmetic.greater_equal: (True, 1),
}
