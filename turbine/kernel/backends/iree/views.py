"""Rules of creation ops and of ops that rearrange lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from torch import fx

from turbine.algebra import ONE, Expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.casting import emit_cast
from turbine.kernel.backends.iree.emitter import RULES, Emitter, lanes_for
from turbine.kernel.backends.iree.memory import by_lane, mask_at
from turbine.kernel.backends.iree.pointwise import broadcast_coords
from turbine.kernel.backends.iree.tiles import (
    Coord,
    Coords,
    Rows,
    TileValue,
    lanes_of,
    merge_reads,
)
from turbine.kernel.lang import constants, creation, shapes
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import BOOL, I64
from turbine.mlir.writer import Index, Value

# Creation


def _constant(emitter: Emitter, node: fx.Node) -> TileValue:
    dtype, number = arguments(node)[1], arguments(node)[2]
    assert isinstance(dtype, Dtype)
    value = elements.number(emitter.w, number, dtype)
    shape = emitter.sizes(node.meta["type"].shape)
    return TileValue(shape, dtype, lambda coords: value)


def _from_index(emitter: Emitter, node: fx.Node) -> TileValue:
    expr, dtype = arguments(node)
    assert isinstance(expr, Expr)
    assert isinstance(dtype, Dtype)
    value = as_number(emitter, emitter.index(expr), dtype)
    return TileValue((), dtype, lambda coords: value)


def as_number(emitter: Emitter, index: Index, dtype: Dtype) -> Value:
    """Convert an index to a dtype."""
    w = emitter.w
    return emit_cast(w, w.convert("arith.index_cast", w.index(index), "i64"), I64, dtype)


def _arange(emitter: Emitter, node: fx.Node) -> TileValue:
    _, start, dtype = arguments(node)
    assert isinstance(start, Expr)
    assert isinstance(dtype, Dtype)
    first = emitter.index(start)

    def compute(coords: Coords) -> Value:
        return count_lanes(emitter, coords[0], first, dtype)

    return TileValue(emitter.sizes(node.meta["type"].shape), dtype, compute)


def count_lanes(emitter: Emitter, coord: Coord, first: Index, dtype: Dtype) -> Value:
    """first + lane for the lanes of a coordinate, as a dtype."""
    w = emitter.w
    wide = w.convert("arith.index_cast", w.index(w.add(coord.base, first)), "i64")
    if coord.lanes:
        lanes = coord.lanes
        wide = w.binary("arith.addi", w.splat(wide, lanes), w.steps("i64", lanes))
    return emit_cast(w, wide, I64, dtype)


RULES[constants.constant] = _constant
RULES[constants.from_index] = _from_index
RULES[creation.arange] = _arange

# Views: map coordinates of the result to coordinates of the operand


def _view(
    emitter: Emitter, node: fx.Node, place: Callable[[Coords], Coords], operand: Any = None
) -> TileValue:
    tile = emitter.tile(arguments(node)[0] if operand is None else operand)

    def compute(coords: Coords) -> Value:
        return emitter.at(tile, place(coords))

    shape = emitter.sizes(node.meta["type"].shape)
    return TileValue(shape, tile.dtype, compute, tile.weight, merge_reads([tile], in_place=False))


def _transpose(emitter: Emitter, node: fx.Node) -> TileValue:
    order: Sequence[int] = arguments(node)[1]
    back = [list(order).index(axis) for axis in range(len(order))]

    def place(coords: Coords) -> Coords:
        return tuple(coords[axis] for axis in back)

    tile, moved = emitter.tile(arguments(node)[0]), _view(emitter, node, place)
    ahead = tile.prefetch
    prefetch = None if ahead is None else lambda coords: ahead(place(coords))
    return replace(moved, contiguous=list(order).index(tile.along), prefetch=prefetch)


def _expand_dims(emitter: Emitter, node: fx.Node) -> TileValue:
    axis: int = arguments(node)[1]

    def place(coords: Coords) -> Coords:
        return coords[:axis] + coords[axis + 1 :]

    view = _view(emitter, node, place)
    has_rows = axis < len(view.shape) - 2  # the rows of the operand
    return _with_rows(view, emitter.tile(arguments(node)[0]), place) if has_rows else view


def _squeeze(emitter: Emitter, node: fx.Node) -> TileValue:
    axis: int = arguments(node)[1]

    def place(coords: Coords) -> Coords:
        return (*coords[:axis], Coord(0), *coords[axis:])

    view = _view(emitter, node, place)
    has_rows = axis < len(view.shape) - 1  # the rows of the operand
    return _with_rows(view, emitter.tile(arguments(node)[0]), place) if has_rows else view


def _broadcast_to(emitter: Emitter, node: fx.Node) -> TileValue:
    tile = emitter.tile(arguments(node)[0])

    def place(coords: Coords) -> Coords:
        return broadcast_coords(tile, coords)

    view = _view(emitter, node, place)
    has_rows = len(tile.shape) > 1 and tile.shape[-2:] == view.shape[-2:]
    return _with_rows(view, tile, place) if has_rows else view


def _with_rows(view: TileValue, tile: TileValue, place: Callable[[Coords], Coords]) -> TileValue:
    """The view, with the rows of its operand."""
    rows = tile.rows
    if rows is None:
        return view
    return replace(view, rows=Rows(rows.pitch, lambda coords: rows.address(place(coords))))


def _slice(emitter: Emitter, node: fx.Node) -> TileValue:
    _, axis, start, _, step = arguments(node)
    assert isinstance(axis, int)
    assert isinstance(start, Expr)
    assert isinstance(step, int)
    first = emitter.index(start)
    if step != 1:
        _materialize_guarded(emitter, arguments(node)[0])
    w = emitter.w

    def place(coords: Coords) -> Coords:
        own = coords[axis]
        moved = Coord(w.add(w.mul(own.base, step), first), own.lanes)
        return (*coords[:axis], moved, *coords[axis + 1 :])

    if step == 1:
        return _view(emitter, node, place)
    return _one_by_one(emitter, _view(emitter, node, place), [axis])


def _reshape(emitter: Emitter, node: fx.Node) -> TileValue:
    operand: Any = arguments(node)[0]
    _materialize_guarded(emitter, operand)
    old, new = operand.meta["type"].shape, node.meta["type"].shape
    counterparts = [_counterpart(emitter, old, new, axis) for axis in range(len(new))]
    old_sizes, new_sizes = emitter.sizes(old), emitter.sizes(new)

    def place(coords: Coords) -> Coords:
        along = [axis for axis, coord in enumerate(coords) if coord.lanes]
        axis = counterparts[along[0]] if along else None
        line = _ravel(emitter, coords, new_sizes)
        return _unravel(emitter, line, old_sizes, axis, lanes_of(coords))

    scattered = [axis for axis, found in enumerate(counterparts) if found is None]
    return _one_by_one(emitter, _view(emitter, node, place), scattered)


def _counterpart(
    emitter: Emitter, old: Sequence[Expr], new: Sequence[Expr], axis: int
) -> int | None:
    """The axis of a tile whose strides match an axis of the reshaped tile.

    None if vectors along the reshaped axis cross rows of the tile.
    """
    size = emitter.facts.simplify(new[axis])
    behind = _count(emitter, new[axis + 1 :])
    for other, length in enumerate(map(emitter.facts.simplify, old)):
        if _count(emitter, old[other + 1 :]) == behind and _is_multiple(length, size):
            return other
    return None


def _count(emitter: Emitter, shape: Sequence[Expr]) -> Expr:
    """The number of lanes of a shape."""
    return reduce(lambda product, size: product * emitter.facts.simplify(size), shape, ONE)


def _is_multiple(length: Expr, size: Expr) -> bool:
    if length == size:
        return True
    whole, part = length.number, size.number
    return whole is not None and part is not None and part > 0 and whole % part == 0


def _materialize_guarded(emitter: Emitter, operand: Any) -> None:
    """Materialize a tile with masked-off lanes: a view would lose its bounds."""
    tile, valid = emitter.tile(operand), operand.meta["valid"]
    if valid.bounds and emitter.is_guarded(operand.meta["type"].shape, valid.bounds):
        emitter.values[operand] = emitter.materialize(
            operand, tile, "masked at an edge, then viewed"
        )


def _one_by_one(emitter: Emitter, tile: TileValue, axes: Sequence[int]) -> TileValue:
    """A tile that is computed lane by lane for vectors along some axes."""
    if not axes:
        return tile

    def compute(coords: Coords) -> Value:
        if not any(coords[axis].lanes for axis in axes):
            return tile.compute(coords)
        return by_lane(emitter, coords, tile.compute)

    return TileValue(tile.shape, tile.dtype, compute, tile.weight + 1, tile.reads)


def _ravel(emitter: Emitter, coords: Coords, shape: Sequence[Index]) -> Index:
    """The flat index of the first lane."""
    w = emitter.w
    place: Index = 0
    for coord, size in zip(coords, shape, strict=True):
        place = w.add(w.mul(place, size), coord.base)
    return place


def _unravel(
    emitter: Emitter, place: Index, shape: Sequence[Index], along: int | None, lanes: int
) -> Coords:
    """The coordinates of a flat index; a vector lies along one axis."""
    w, rest = emitter.w, place
    coords: list[Coord] = []
    for axis in range(len(shape) - 1, -1, -1):
        own = w.mod(rest, shape[axis]) if axis else rest
        coords.append(Coord(own, lanes if axis == along else 0))
        rest = w.floordiv(rest, shape[axis]) if axis else rest
    return tuple(reversed(coords))


def _concatenate(emitter: Emitter, node: fx.Node) -> TileValue:
    operands, axis = arguments(node)
    assert isinstance(axis, int)
    type = node.meta["type"]
    buffer = emitter.allocate(type.shape, type.dtype)
    start: Index = 0
    for operand in operands:
        part = emitter.tile(operand)
        _append(emitter, operand, part, buffer, axis, start)
        start = emitter.w.add(start, part.shape[axis])
    return emitter.tile_in(buffer, emitter.sizes(type.shape))


def _append(
    emitter: Emitter, operand: Any, part: TileValue, buffer: Any, axis: int, start: Index
) -> None:
    extents = emitter.extents(operand.meta["type"].shape, operand.meta["valid"].bounds)

    def body(coords: Coords) -> None:
        own = coords[axis]
        moved = Coord(emitter.w.add(own.base, start), own.lanes)
        emitter.put(buffer, (*coords[:axis], moved, *coords[axis + 1 :]), emitter.at(part, coords))

    emitter.sweep(extents, lanes_for(part.dtype, extents), body)


def _mask_of(emitter: Emitter, node: fx.Node) -> TileValue:
    """Whether lanes satisfy the bounds and masks of the node."""
    shape: Sequence[Expr] = arguments(node)[0]
    bounds: Any = options(node)["bounds"]
    masks = [emitter.tile(mask) for mask in options(node)["masks"]]
    if masks and emitter.is_guarded(shape, bounds):
        return _masks_inside(emitter, shape, bounds, masks)
    extents, sizes = emitter.extents(shape, bounds), emitter.sizes(shape)
    condition = emitter.condition(bounds) if not shape else None

    def compute(coords: Coords) -> Value:
        w = emitter.w
        rows = zip(coords, extents, sizes, strict=True)
        inside = [_inside(emitter, coord, extent, size) for coord, extent, size in rows]
        checks = [condition, *inside, mask_at(emitter, masks, coords)]
        found = [emitter.spread(check, coords) for check in checks if check is not None]
        if not found:
            return emitter.spread(w.constant(True, "i1"), coords)
        return reduce(lambda one, other: w.binary("arith.andi", one, other), found)

    return TileValue(sizes, BOOL, compute, 2)


def _masks_inside(
    emitter: Emitter, shape: Sequence[Expr], bounds: Any, masks: Sequence[TileValue]
) -> TileValue:
    """Materialize masks: their operands may not be read out of bounds."""
    buffer = emitter.allocate(shape, BOOL)
    false = TileValue((), BOOL, lambda coords: emitter.w.constant(False, "i1"))
    emitter.fill(buffer, false, emitter.extents(shape, ()))

    def body(coords: Coords) -> None:
        mask = mask_at(emitter, masks, coords)
        assert mask is not None
        emitter.put(buffer, coords, mask)

    emitter.sweep_inside(shape, bounds, body, BOOL)
    return emitter.tile_in(buffer, emitter.sizes(shape))


def _inside(emitter: Emitter, coord: Coord, extent: Any, size: Index) -> Value | None:
    """Whether lanes lie in an extent; None if all of them do."""
    w, (first, end) = emitter.w, extent
    place = None
    found: Value | None = None
    for predicate, limit, trivial in (("sge", first, 0), ("slt", end, size)):
        if limit == trivial:
            continue
        if place is None:
            place = count_lanes(emitter, coord, 0, I64)
        bound = w.convert("arith.index_cast", w.index(limit), "i64")
        other = w.splat(bound, place.lanes) if place.lanes else bound
        check = w.compare("arith.cmpi", predicate, place, other)
        found = check if found is None else w.binary("arith.andi", found, check)
    return found


RULES[shapes.transpose] = _transpose
RULES[shapes.expand_dims] = _expand_dims
RULES[shapes.squeeze] = _squeeze
RULES[shapes.broadcast_to] = _broadcast_to
RULES[shapes.slice_] = _slice
RULES[shapes.reshape] = _reshape
RULES[shapes.concatenate] = _concatenate
RULES[shapes.mask_of] = _mask_of
