"""Loads and stores of blocks, gather and scatter.

See Note [Masked-off lanes] for edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import ONE, ZERO, Expr, Symbol, is_never_negative, symbol
from turbine.dtypes import Dtype
from turbine.kernel.lang.affine import Block, block_of, bounds_of
from turbine.kernel.lang.arithmetic import as_bool
from turbine.kernel.lang.index_checks import check_indices, wants_check
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.shapes import (
    align_to,
    broadcast_to,
    expand_dims,
    new_axes,
    squeeze,
    transpose,
)
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import Op, Operand, broadcast_shapes, describe, op, shape_of
from turbine.kernel.trace.tracer import OPERATORS, Buffer, IndexExpr, Tile, expr_of, user_line
from turbine.kernel.trace.types import BOOL, I64, TileType, axes_text
from turbine.kernel.trace.validity import Bound, Valid, both

Index = Expr | Tile


def _load(
    op: Op,
    buffer: Buffer,
    index: Any,
    shape: Any = None,
    *,
    mask: Tile | None = None,
    other: Operand | None = None,
    check: bool | None = None,
) -> Tile:
    checked = buffer_of(buffer, "tkl.load")
    _check_written(checked)
    if shape is None and has_slices(index):
        index, shape = split_slices(checked, index, "tkl.load")
    shape = _pad_shape(checked, shape)
    places = places_of(checked, index, "tkl.load")
    is_gather = shape is None and any(isinstance(place, Tile) for place in places)
    tile = _gather(checked, places) if is_gather else _block(op, checked, places, shape)
    masking = Valid() if mask is None else restriction(tile.type.shape, mask, "tkl.load")
    if wants_check(check, "tkl.load", has_other=other is not None):
        named = places if is_gather else single_places(places, shape)
        check_indices(checked, named, tile.type.shape, masking, always=check is True)
    tile = Tile(tile.node, tile.type, both([tile.valid, masking]))
    return tile if other is None else fill_missing(tile, other)


@op(_load)
def load(buffer: Tensor, index: Sequence[int], shape: Sequence[int], within: Tensor) -> Tensor:
    """Read a block of a buffer, or gather single elements.

    Elements outside the buffer, and those where `mask` is False, are masked off: reductions skip
    them and stores leave them out.

    Args:
        buffer: A buffer of the kernel.
        index: Where the block starts, an integer or an expression along each axis of the buffer.
            Without `shape`, tiles of integers gather the elements they name.
        shape: The size of the block along each axis. An axis of size None is read at one position
            and left out of the tile; missing leading sizes are None. Without `shape`, a slice in
            `index`, `a[i, :]`, is a block along its axis.
        mask: A tile of bools, broadcast to the tile that is read.
        other: The value of elements that would be masked off.
        check: Whether an index outside the buffer is an error. By default it is if the index was
            itself loaded, unless `mask` removes it or `other` is given. True checks computed
            indices too, False checks none.

    Returns:
        A tile in the dtype of the buffer.

    Example::

        @tk.gen.kernel()
        def first(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[4, tkl.f32]):
            tkl.store(y, (0,), tkl.load(x, (0,), (4,), other=-1))

        first(torch.arange(3.0))  # tensor([ 0.,  1.,  2., -1.])

        @tk.gen.kernel()
        def gather(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[3, tkl.f32]):
            tkl.store(y, (0,), tkl.load(x, (tkl.arange(3) * 2,)))

        gather(torch.arange(5.0))  # tensor([0., 2., 4.])
    """
    grids = [
        (torch.arange(size) + start).clamp(0, max(extent - 1, 0))
        for start, size, extent in zip(index, shape, buffer.shape, strict=True)
    ]
    if not buffer.numel():
        return buffer.new_zeros(tuple(shape))
    return buffer[torch.meshgrid(*grids, indexing="ij")] if grids else buffer.clone()


def _block(op: Op, buffer: Buffer, places: Sequence[Index], shape: Any) -> Tile:
    offsets = [as_offset(place) for place in places]
    wanted = (None,) * len(offsets) if shape is None else shape
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    sizes = shape_of([1 if size is None else size for size in wanted], "tkl.load")
    if len(sizes) != len(offsets):
        raise errors.KernelError(
            f"a block of {axes_text(len(sizes))} is read from {buffer.name}, which has "
            f"{buffer.type.rank}: {buffer.type}",
            where=user_line(),
            hint="pass one size for each axis",
        )
    bounds = block_bounds(buffer, offsets, sizes)
    dtype = _dtype(buffer)
    tile = op.add(
        buffer,
        tuple(offsets),
        sizes,
        type=TileType(sizes, dtype),
        valid=Valid(bounds),
        bounds=bounds,
    )
    for axis in range(len(sizes) - 1, -1, -1):
        if wanted[axis] is None:
            tile = squeeze(tile, axis)
    return tile


def block_bounds(
    buffer: Buffer, offsets: Sequence[Expr], sizes: Sequence[Expr]
) -> tuple[Bound, ...]:
    """The bounds of a block in its buffer."""
    rows = zip(offsets, sizes, buffer.type.shape, strict=True)
    return tuple(
        Bound(None if size == ONE else axis, offset, extent)
        for axis, (offset, size, extent) in enumerate(rows)
    )


def _gather(buffer: Buffer, places: Sequence[Index]) -> Tile:
    tiles = [as_tile(_as_value(place), I64, "load") for place in places]
    shape = broadcast_shapes([tile.type for tile in tiles])
    block = block_of(tiles, shape)
    if block is not None:
        return _as_lanes(_load_block(buffer, block, shape), block, shape)
    spread = [broadcast_to(tile, list(map(IndexExpr, shape))) for tile in tiles]
    inside: Tile = in_bounds(buffer, *spread)
    known = both([tile.valid for tile in spread])
    valid = Valid(known.bounds, (*known.masks, inside))
    return gather.add(
        buffer,
        tuple(spread),
        type=TileType(shape, _dtype(buffer)),
        valid=valid,
        bounds=known.bounds,
        masks=valid.masks,
    )


def _load_block(buffer: Buffer, block: Block, shape: Sequence[Expr]) -> Tile:
    sizes = [IndexExpr(ONE if axis is None else shape[axis]) for axis in block.axes]
    return _block(load, buffer, block.offsets, sizes)


def _as_lanes(tile: Tile, block: Block, shape: Sequence[Expr]) -> Tile:
    """Permute the axes of a block to those of the index tiles."""
    for axis in range(len(block.axes) - 1, -1, -1):
        if block.axes[axis] is None:
            tile = squeeze(tile, axis)
    order = [axis for axis in block.axes if axis is not None]
    lanes: Tile = transpose(tile, sorted(range(len(order)), key=order.__getitem__))
    for axis, size in enumerate(shape):
        if size == ONE:
            lanes = expand_dims(lanes, axis)
    return lanes


def _as_block(tile: Tile, block: Block) -> Tile:
    """Permute the axes of a tile to those of a block."""
    for axis in range(tile.type.rank - 1, -1, -1):
        if tile.type.shape[axis] == ONE:
            tile = squeeze(tile, axis)
    wide = sorted(axis for axis in block.axes if axis is not None)
    tile = transpose(tile, [wide.index(axis) for axis in block.axes if axis is not None])
    for place, lane_axis in enumerate(block.axes):
        if lane_axis is None:
            tile = expand_dims(tile, place)
    return tile


def _as_value(place: Index) -> Any:
    return place if isinstance(place, Tile) else IndexExpr(place)


@op(_gather)
def gather(buffer: Tensor, index: Sequence[Tensor]) -> Tensor:
    """Load the elements at index tiles."""
    if not buffer.numel():
        return buffer.new_zeros(index[0].shape)
    limits = [max(extent - 1, 0) for extent in buffer.shape]
    return buffer[tuple(i.clamp(0, limit) for i, limit in zip(index, limits, strict=True))]


def _in_bounds(op: Op, buffer: Buffer, *index: Tile) -> Tile:
    return op.add(buffer, tuple(index), type=index[0].type.of(BOOL))


@op(_in_bounds)
def in_bounds(buffer: Tensor, index: Sequence[Tensor]) -> Tensor:
    """Whether indices are in bounds of a buffer."""
    inside = [(i >= 0) & (i < extent) for i, extent in zip(index, buffer.shape, strict=True)]
    return torch.stack(inside).all(0)


def apply_mask(tile: Tile, mask: Any, what: str) -> Tile:
    """Mask off lanes of a tile."""
    masking = restriction(tile.type.shape, mask, what)
    return Tile(tile.node, tile.type, both([tile.valid, masking]))


def restriction(shape: Sequence[Expr], mask: Any, what: str) -> Valid:
    """Broadcast a mask to a shape and convert it to conditions."""
    condition = as_bool(mask, what)
    padded = align_to(condition, shape)
    bounds = bounds_of(condition)
    if bounds is None:
        return both([padded.valid, Valid((), (padded,))])
    return Valid(tuple(_align(bound, condition, len(shape)) for bound in bounds))


def _align(bound: Bound, mask: Tile, rank: int) -> Bound:
    """Move a bound of a mask to a rank that the mask is broadcast to."""
    assert bound.axis is not None
    is_single = mask.type.shape[bound.axis] == ONE
    return replace(bound, axis=None if is_single else bound.axis + rank - mask.type.rank)


def _fill_missing(op: Op, x: Tile, other: Any) -> Tile:
    filling = as_tile(other, x.dtype, "load")
    spread = broadcast_to(filling, list(x.shape))
    given = {"bounds": x.valid.bounds, "masks": x.valid.masks}
    return op.add(x, spread, type=x.type, valid=spread.valid, **given)


@op(_fill_missing)
def fill_missing(x: Tensor, other: Tensor, within: Tensor) -> Tensor:
    """Replace masked-off lanes by another value."""
    return torch.where(within, x, other)


def _store(
    op: Op,
    buffer: Buffer,
    index: Any,
    value: Operand,
    *,
    mask: Tile | None = None,
    check: bool | None = None,
) -> None:
    checked = buffer_of(buffer, "tkl.store")
    check_writable(checked, "tkl.store")
    tile = value_for(checked, value, "tkl.store")
    if has_slices(index):
        index, shape = split_slices(checked, index, "tkl.store")
        tile = _spread(tile, shape)
    places = places_of(checked, index, "tkl.store")
    tracer.current("tkl.store").written.add(checked.name)
    if any(isinstance(place, Tile) and place.type.rank for place in places):
        _scatter(checked, places, tile, mask, check)
        return
    offsets = [as_offset(place) for place in places]
    if tile.type.rank > len(offsets):
        raise errors.KernelError(
            f"a tile {tile.type} is stored to {checked.name}, which has fewer axes: {checked.type}",
            where=user_line(),
            hint="a tile has at most as many axes as the buffer",
        )
    block = new_axes(tile, len(offsets) - tile.type.rank)
    if mask is not None:
        block = apply_mask(block, mask, "tkl.store")
    check_block(checked, places, block, check, "tkl.store")
    _store_block(checked, offsets, block)


def _store_block(buffer: Buffer, offsets: Sequence[Expr], block: Tile) -> None:
    bounds = Valid(block_bounds(buffer, offsets, block.type.shape))
    valid = both([bounds, block.valid])
    store.record(buffer, tuple(offsets), block, bounds=valid.bounds, masks=valid.masks)


@op(_store)
def store(buffer: Tensor, index: Sequence[int], value: Tensor, within: Tensor) -> None:
    """Write a tile to a block of a buffer, or scatter its elements.

    Elements that are masked off, lie outside the buffer, or where `mask` is False are not written.
    Two programs must not store to one element; atomics may.

    Args:
        buffer: An output, in-out or temporary buffer of the kernel.
        index: Where the block starts, an integer or an expression along each axis of the buffer.
            Tiles of integers scatter to the elements they name.
        value: A tile or number, converted to the dtype of the buffer. Floats are not converted to
            integers: use `x.to(dtype)`.
        mask: A tile of bools, broadcast to the tile that is written.
        check: Whether an index outside the buffer is an error, as in `tkl.load`.

    Example::

        @tk.gen.kernel(N // B, blocks={B: 4})
        def relu(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32].filled(0)):
            start = tkl.program_id(0) * B
            tile = tkl.load(x, (start,), (B,))
            tkl.store(y, (start,), tile, mask=tile > 0)

        relu(torch.arange(5.0) - 2)  # tensor([0., 0., 0., 1., 2.])
    """
    places = torch.nonzero(within.expand(value.shape), as_tuple=True)
    targets = tuple(place + start for place, start in zip(places, index, strict=True))
    buffer[targets] = value[places]


def _scatter(buffer: Buffer, places: Sequence[Index], value: Tile, mask: Any, check: Any) -> None:
    tiles = [as_tile(_as_value(place), I64, "store") for place in places]
    shape = broadcast_shapes([*(tile.type for tile in tiles), value.type])
    block = block_of(tiles, shape)
    if block is not None:
        lanes = broadcast_to(value, list(map(IndexExpr, shape)))
        named = lanes if mask is None else apply_mask(lanes, mask, "tkl.store")
        if wants_check(check, "tkl.store"):
            check_indices(buffer, tiles, shape, named.valid, always=check is True)
        _store_block(buffer, block.offsets, _as_block(named, block))
        return
    index, spread, valid = broadcast_scatter(buffer, places, value, mask, check, "tkl.store")
    scatter.record(buffer, index, spread, bounds=valid.bounds, masks=valid.masks)


def broadcast_scatter(
    buffer: Buffer, places: Sequence[Index], value: Tile, mask: Any, check: Any, what: str
) -> tuple[tuple[Tile, ...], Tile, Valid]:
    """Broadcast indices and a value; return them with the lanes to write."""
    tiles = [as_tile(_as_value(place), I64, what) for place in places]
    shape = broadcast_shapes([*(tile.type for tile in tiles), value.type])
    sizes = list(map(IndexExpr, shape))
    index = tuple(broadcast_to(tile, sizes) for tile in tiles)
    spread = broadcast_to(value, sizes)
    inside: Tile = in_bounds(buffer, *index)
    named = both([tile.valid for tile in (*index, spread)])
    if mask is not None:
        named = both([named, restriction(shape, mask, what)])
    if wants_check(check, what):
        check_indices(buffer, tiles, shape, named, always=check is True)
    return index, spread, both([named, Valid((), (inside,))])


def check_block(
    buffer: Buffer, places: Sequence[Index], block: Tile, check: Any, what: str
) -> None:
    """Check the indices of a block along axes of size 1."""
    if wants_check(check, what):
        named = single_places(places, list(block.shape))
        check_indices(buffer, named, block.type.shape, block.valid, always=check is True)


def single_places(places: Sequence[Index], sizes: Any) -> list[Index | None]:
    """The indices of a block along axes of size 1; None along others, which are masked."""
    if sizes is None:
        return list(places)
    listed = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    is_single = [size is None or expr_of(size) == ONE for size in listed]
    return [p if single else None for p, single in zip(places, is_single, strict=True)]


@op(_scatter)
def scatter(buffer: Tensor, index: Sequence[Tensor], value: Tensor, within: Tensor) -> None:
    """Store to the elements at index tiles."""
    lanes = within.expand(value.shape)
    buffer[tuple(i[lanes] for i in index)] = value[lanes]


# Checks


def buffer_of(value: Any, what: str) -> Buffer:
    """Check that an argument is a buffer."""
    tracer.current(what)
    if isinstance(value, Buffer):
        return value
    raise errors.KernelError(
        f"{what} of {describe(value)}, which is not a buffer",
        where=user_line(),
        hint="the first argument must be a buffer argument of the kernel",
    )


def _check_written(buffer: Buffer) -> None:
    if buffer.type.usage not in ("output", "temporary") or buffer.type.fill is not None:
        return
    if buffer.name not in tracer.current("tkl.load").written:
        raise errors.KernelError(
            f"{buffer.name} is read before it is written: {buffer.type}",
            where=user_line(),
            hint="write to it first, or make it an InOutBuffer, or an output that is .filled(0)",
        )


def check_writable(buffer: Buffer, what: str) -> None:
    """Raise if a buffer is an input."""
    if buffer.type.usage == "input":
        raise errors.KernelError(
            f"{what} to {buffer.name}, which is an input: {buffer.type}",
            where=user_line(),
            hint="make it an OutputBuffer, or an InOutBuffer to change the caller's tensor",
        )


def has_slices(index: Any) -> bool:
    """Whether an index has a slice, `a[i, :]`."""
    items = index if isinstance(index, (tuple, list)) else (index,)
    return any(isinstance(item, slice) for item in items)


def split_slices(buffer: Buffer, index: Any, what: str) -> tuple[list[Any], list[Any]]:
    """The start and the sizes of a block; sizes are None along axes without a slice."""
    items = list(index) if isinstance(index, (tuple, list)) else [index]
    starts, sizes = list(items), [None] * len(items)
    for axis, (item, extent) in enumerate(zip(items, buffer.type.shape, strict=False)):
        if not isinstance(item, slice):
            continue
        if item.step not in (None, 1):
            raise errors.KernelError(
                f"{what}: an index is {item!r}",
                where=user_line(),
                hint="slices of a buffer have step 1; gather with tkl.arange instead",
            )
        starts[axis] = IndexExpr(_limit(item.start, extent, ZERO, what))
        sizes[axis] = IndexExpr(_limit(item.stop, extent, extent, what)) - starts[axis]
    return starts, sizes


def _limit(limit: Any, extent: Expr, otherwise: Expr, what: str) -> Expr:
    """The start or the end of a slice; a negative number counts from the end."""
    if limit is None:
        return otherwise
    place = _place(limit, what)
    offset = as_offset(place)
    is_from_end = isinstance(limit, int) and limit < 0
    return extent + offset if is_from_end else offset


def _pad_shape(buffer: Buffer, shape: Any) -> Any:
    """Pad a shape with None for missing leading axes."""
    if shape is None:
        return None
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    return (*[None] * (buffer.type.rank - len(sizes)), *sizes)


def _spread(tile: Tile, shape: Sequence[Any]) -> Tile:
    """Broadcast a value to a block; None is an axis of size 1."""
    block: Tile = broadcast_to(tile, [size for size in shape if size is not None])
    for axis, size in enumerate(shape):
        if size is None:
            block = expand_dims(block, axis)
    return block


def places_of(buffer: Buffer, index: Any, what: str) -> list[Index]:
    """Check an index: an expression or a tile of integers along each axis."""
    items = index if isinstance(index, (tuple, list)) else (index,)
    if len(items) != buffer.type.rank:
        raise errors.KernelError(
            f"{what}: {len(items)} indices for {buffer.name}, which has "
            f"{axes_text(buffer.type.rank)}: {buffer.type}",
            where=user_line(),
            hint="pass one index for each axis",
        )
    return [_place(item, what) for item in items]


def _place(item: Any, what: str) -> Index:
    if isinstance(item, Tile):
        if item.dtype.kind not in ("int", "uint"):
            raise errors.KernelError(
                f"{what}: an index is {item!r}", where=user_line(), hint="indices are integers"
            )
        return item
    if isinstance(item, (int, IndexExpr)) and not isinstance(item, bool):
        return expr_of(item)
    raise errors.KernelError(
        f"{what}: an index is {item!r}",
        where=user_line(),
        hint="an index is a number, an expression of sizes and program ids, or a tile of integers",
    )


def as_offset(place: Index) -> Expr:
    """The start of a block along an axis; a computed integer becomes a symbol."""
    if isinstance(place, Expr):
        return place
    if place.type.rank:
        raise errors.KernelError(
            f"a block starts at {place!r}",
            where=user_line(),
            hint="a block starts at a single number; leave out the shape to gather at a tile of "
            "indices",
        )
    return index_from_value(place, FARTHEST)


# Larger than any buffer or loop.
FARTHEST = 1 << 61


def index_from_value(value: Tile, otherwise: int) -> Expr:
    """Convert a computed integer to an expression; if it is masked off, to `otherwise`."""
    index: IndexExpr = to_index(number_or(as_tile(value, I64, "to_index"), otherwise))
    return index.expr


def number_or(value: Tile, otherwise: bool | int) -> Tile:
    """Replace a scalar tile by `otherwise` if it is masked off."""
    ranges = tracer.current("a number").ranges
    is_valid = not value.valid.masks and all(
        is_never_negative(b.offset, ranges) and is_never_negative(b.limit - b.offset - 1, ranges)
        for b in value.valid.bounds
    )
    number: Tile = value if is_valid else fill_missing(value, otherwise)
    return number


def _to_index(op: Op, x: Tile) -> IndexExpr:
    trace = tracer.current("tkl.to_index")
    trace.counters += 1
    unknown = Symbol(x.node.name, "data", trace.counters)
    op.record(x, unknown)
    return IndexExpr(symbol(unknown.name, unknown.kind, unknown.number))


@op(_to_index)
def to_index(x: Tensor, symbol: Symbol) -> int:
    """Convert a computed integer to an offset or a loop bound."""
    return int(x)


def value_for(buffer: Buffer, value: Any, what: str) -> Tile:
    """Convert a value to the dtype of a buffer."""
    tile = as_tile(value, None if isinstance(value, Tile) else _dtype(buffer), what)
    if tile.dtype == _dtype(buffer):
        return tile
    if tile.dtype.kind == "float" and _dtype(buffer).kind != "float":
        raise errors.KernelError(
            f"{tile!r} is stored to {buffer.name}, which holds no floats: {buffer.type}",
            where=user_line(),
            hint="convert it first, x.to(tkl.i32)",
        )
    return tile.to(_dtype(buffer))


def _dtype(buffer: Buffer) -> Dtype:
    assert isinstance(buffer.type.dtype, Dtype)
    return buffer.type.dtype


OPERATORS["load"] = load
OPERATORS["store"] = store
