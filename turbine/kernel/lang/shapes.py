"""Shape ops: transpose, broadcast, reshape, slice and concatenate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import ONE, ZERO, Expr
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.trace.op import Op, Operand, Shape, Size, common_dtype, op, shape_of
from turbine.kernel.trace.tracer import OPERATORS, IndexExpr, Tile, user_line
from turbine.kernel.trace.types import BOOL, TileType, axes_text
from turbine.kernel.trace.validity import ALWAYS, Valid


def axis_of(axis: Any, rank: int, what: str) -> int:
    """Check an axis and count it from the first."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise errors.KernelError(
            f"{what}: axis {axis!r} is out of range for a tile with {axes_text(rank)}",
            where=user_line(),
            hint=f"axes are {-rank} to {rank - 1}" if rank else "it is a scalar",
        )
    return axis % rank


# Valid lanes as a tile


def _mask_of(op: Op, shape: tuple[Expr, ...], valid: Valid) -> Tile:
    type = TileType(shape, BOOL)
    return op.add(shape, type=type, bounds=valid.bounds, masks=valid.masks)


@op(_mask_of)
def mask_of(shape: Sequence[int], within: Tensor) -> Tensor:
    """Whether each lane is valid."""
    return within.expand(shape)


def masked(x: Tile) -> Tile:
    """The valid lanes of a tile, as a tile of bools."""
    mask: Tile = mask_of(x.type.shape, x.valid)
    return mask


def _view_valid(x: Tile, view: Callable[[Tile], Tile]) -> Valid:
    """The valid lanes of a view: the same view of the mask."""
    return Valid((), (view(masked(x)),)) if x.valid else ALWAYS


# Transpose


def _transpose(op: Op, x: Tile, perm: Sequence[int] | None = None) -> Tile:
    rank = x.type.rank
    order = tuple(range(rank))[::-1] if perm is None else tuple(perm)
    if sorted(order) != list(range(rank)):
        raise errors.KernelError(
            f"tkl.transpose of {x!r}: {order} is not a permutation of the axes",
            where=user_line(),
            hint=f"name the axes 0 to {rank - 1} in their new order",
        )
    if order == tuple(range(rank)):
        return x
    shape = tuple(x.type.shape[axis] for axis in order)
    masks = tuple(op(mask, order) for mask in x.valid.masks)
    valid = Valid(x.valid.move_bounds(order.index), masks)
    return op.add(x, order, type=TileType(shape, x.dtype), valid=valid)


@op(_transpose)
def transpose(x: Tensor, perm: Sequence[int]) -> Tensor:
    """Permutation of the axes; without `perm`, their order is reversed.

    Example::

        tkl.transpose(tkl.iota((2, 3), 1))  # [[0 0] [1 1] [2 2]]
        tkl.sum(tkl.transpose(tkl.iota((2, 3, 4), 2), (2, 0, 1)), axis=(1, 2))  # [0 6 12 18]
    """
    return x.permute(*perm)


# Axes of size one


def _expand_dims(op: Op, x: Tile, axis: int) -> Tile:
    rank = x.type.rank + 1
    place = axis_of(axis, rank, "tkl.expand_dims")
    shape = (*x.type.shape[:place], ONE, *x.type.shape[place:])
    masks = tuple(op(mask, place) for mask in x.valid.masks)
    valid = Valid(x.valid.move_bounds(lambda a: a + (a >= place)), masks)
    return op.add(x, place, type=TileType(shape, x.dtype), valid=valid)


@op(_expand_dims)
def expand_dims(x: Tensor, axis: int) -> Tensor:
    """x with a new axis of size 1 at the given position: `x[:, None]`.

    Example::

        tkl.expand_dims(tkl.arange(3), 1)  # [[0] [1] [2]]
    """
    return x.unsqueeze(axis)


def new_axes(x: Tile, count: int) -> Tile:
    """Add leading axes of size 1."""
    return reduce(lambda tile, _: expand_dims(tile, 0), range(count), x)


def _squeeze(op: Op, x: Tile, axis: int) -> Tile:
    place = axis_of(axis, x.type.rank, "tkl.squeeze")
    if x.type.shape[place] != ONE:
        raise errors.KernelError(
            f"tkl.squeeze of {x!r}: axis {place} has size {x.type.shape[place]}, not 1",
            where=user_line(),
            hint="x[0] takes one element along an axis",
        )
    shape = x.type.shape[:place] + x.type.shape[place + 1 :]
    masks = tuple(op(mask, place) for mask in x.valid.masks)
    valid = Valid(x.valid.move_bounds(lambda a: a - (a > place)), masks)
    return op.add(x, place, type=TileType(shape, x.dtype), valid=valid)


@op(_squeeze)
def squeeze(x: Tensor, axis: int) -> Tensor:
    """x without an axis of size 1.

    Example::

        tkl.squeeze(tkl.iota((1, 3), 1), 0)  # [0 1 2]
    """
    return x.squeeze(axis)


# Broadcasting


def _broadcast_to(op: Op, x: Operand, shape: Shape) -> Tile:
    sizes = shape_of(shape, "tkl.broadcast_to")
    tile = as_tile(x, None, "broadcast_to")
    if tile.type.shape == sizes:
        return tile
    padded = align_to(tile, sizes)
    return op.add(padded, sizes, type=TileType(sizes, tile.dtype), valid=padded.valid)


def align_to(tile: Tile, sizes: Sequence[Expr]) -> Tile:
    """Add leading axes to a tile that is broadcast to a shape."""
    missing = len(sizes) - tile.type.rank
    fits = missing >= 0 and all(
        old in (ONE, new) for old, new in zip(tile.type.shape, sizes[missing:], strict=True)
    )
    if not fits:
        listed = ", ".join(map(str, sizes))
        raise errors.KernelError(
            f"{tile!r} cannot be broadcast to [{listed}]",
            where=user_line(),
            hint="axes are aligned at the last; only axes of size 1 are repeated",
        )
    return new_axes(tile, missing)


@op(_broadcast_to)
def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x broadcast to a shape: axes are aligned at the last, and those of size 1 repeat.

    Example::

        tkl.broadcast_to(tkl.arange(3), (2, 3))  # [[0 1 2] [0 1 2]]
    """
    return x.expand(*shape)


def broadcast(x: Any, leading_sizes: Any) -> Tile:
    """x repeated along new leading axes of the given sizes.

    Example::

        tkl.broadcast(tkl.arange(3), (2,))  # [[0 1 2] [0 1 2]]
    """
    tile = as_tile(x, None, "broadcast")
    leading = shape_of(leading_sizes, "tkl.broadcast")
    result: Tile = broadcast_to(tile, [*map(IndexExpr, leading), *tile.shape])
    return result


def broadcast_in_dim(x: Any, shape: Any, broadcast_dimensions: Sequence[int]) -> Tile:
    """x broadcast to a shape, its axes placed at `broadcast_dimensions`.

    `broadcast_dimensions` names an axis of the result for each axis of x, in increasing order.

    Example::

        tkl.broadcast_in_dim(tkl.arange(2), (2, 3), [0])  # [[0 0 0] [1 1 1]]
    """
    tile = as_tile(x, None, "broadcast_in_dim")
    rank = len(shape_of(shape, "tkl.broadcast_in_dim"))
    places = [axis_of(axis, rank, "tkl.broadcast_in_dim") for axis in broadcast_dimensions]
    if len(places) != tile.type.rank or sorted(set(places)) != places:
        raise errors.KernelError(
            f"tkl.broadcast_in_dim of {tile!r}: {list(broadcast_dimensions)} must be "
            f"{tile.type.rank} increasing axes",
            where=user_line(),
            hint="name an axis of the result for each axis of the tile, in increasing order",
        )
    for axis in range(rank):
        if axis not in places:
            tile = expand_dims(tile, axis)
    result: Tile = broadcast_to(tile, shape)
    return result


# Reshaping


def _reshape(op: Op, x: Tile, shape: Shape) -> Tile:
    sizes = shape_of(shape, "tkl.reshape")
    if _count(sizes) != _count(x.type.shape):
        listed = ", ".join(map(str, sizes))
        raise errors.KernelError(
            f"tkl.reshape of {x!r} to [{listed}]: {_count(x.type.shape)} elements are not "
            f"{_count(sizes)}",
            where=user_line(),
            hint="the sizes of a shape multiply to the same number, in the same symbols",
        )
    if sizes == x.type.shape:
        return x
    valid = _view_valid(x, lambda mask: op(mask, shape))
    return op.add(x, sizes, type=TileType(sizes, x.dtype), valid=valid)


@op(_reshape)
def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements of x, in row-major order, in another shape of the same size.

    Example::

        tkl.reshape(tkl.arange(6), (2, 3))  # [[0 1 2] [3 4 5]]
    """
    return x.reshape(*shape)


def _count(sizes: Sequence[Expr]) -> Expr:
    return reduce(lambda product, size: product * size, sizes, ONE)


# Slice and concatenate


def _slice(op: Op, x: Tile, axis: int, start: Size, size: Size, step: int = 1) -> Tile:
    place = axis_of(axis, x.type.rank, "tkl.slice")
    (first, length) = shape_of((start, size), "tkl.slice")
    whole = x.type.shape[place]
    last = first + (length - 1) * step
    left = (whole - last - 1).number
    if step < 1 or (left is not None and left < 0):
        raise errors.KernelError(
            f"tkl.slice of {x!r}: start {first}, size {length} and step {step} are out of range "
            f"for size {whole}",
            where=user_line(),
            hint="start + (size - 1) * step must be less than the size of the axis",
        )
    shape = (*x.type.shape[:place], length, *x.type.shape[place + 1 :])
    if step == 1:
        # A bound of a single lane applies to the whole tile.
        along = None if length == ONE else place
        bounds = tuple(
            replace(b, axis=along, offset=b.offset + first) if b.axis == place else b
            for b in x.valid.bounds
        )
        valid = Valid(
            bounds, tuple(_slice_mask(op, mask, place, first, length) for mask in x.valid.masks)
        )
    else:
        valid = _view_valid(x, lambda mask: op(mask, place, start, size, step))
    return op.add(x, place, first, length, step, type=TileType(shape, x.dtype), valid=valid)


def _slice_mask(op: Op, mask: Tile, axis: int, first: Expr, length: Expr) -> Tile:
    if mask.type.shape[axis] == ONE:
        return mask
    result: Tile = op(mask, axis, IndexExpr(first), IndexExpr(length))
    return result


@op(_slice)
def slice_(x: Tensor, axis: int, start: int, size: int, step: int) -> Tensor:
    """`size` elements of x along an axis, from `start` on, every `step`-th: `x[2:6:2]`.

    Example::

        tkl.slice(tkl.arange(8), axis=0, start=2, size=2, step=2)  # [2 4]
    """
    return x.narrow(axis, start, (size - 1) * step + 1 if size else 0)[
        (slice(None),) * axis + (slice(None, None, step),)
    ]


def _concatenate(op: Op, tiles: Sequence[Tile], axis: int = 0) -> Tile:
    if not tiles:
        raise errors.KernelError(
            "tkl.concatenate of no tiles", where=user_line(), hint="pass a list of tiles"
        )
    dtype = common_dtype(tiles, "concatenate")
    parts = [as_tile(tile, dtype, "concatenate") for tile in tiles]
    place = axis_of(axis, parts[0].type.rank, "tkl.concatenate")
    others = {_without(part.type.shape, place) for part in parts}
    if len(others) > 1:
        listed = " and ".join(str(part.type) for part in parts)
        raise errors.KernelError(
            f"tkl.concatenate of {listed} along axis {place}: the other sizes differ",
            where=user_line(),
            hint="tiles must agree along all other axes; use tkl.broadcast_to",
        )
    total = sum((part.type.shape[place] for part in parts), start=ZERO)
    shape = (*parts[0].type.shape[:place], total, *parts[0].type.shape[place + 1 :])
    valid = ALWAYS
    if any(part.valid for part in parts):
        valid = Valid((), (op([masked(part) for part in parts], place),))
    return op.add(tuple(parts), place, type=TileType(shape, dtype), valid=valid)


def _without(shape: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
    return shape[:axis] + shape[axis + 1 :]


@op(_concatenate)
def concatenate(tiles: Sequence[Tensor], axis: int) -> Tensor:
    """Tiles joined along an axis; their other sizes must agree.

    Tiles are converted to one dtype.

    Example::

        tkl.concatenate([tkl.arange(2), tkl.arange(3)])  # [0 1 0 1 2]
    """
    return torch.cat(list(tiles), axis)


# x[:, None], x[0], x[2:4]


def subscript(x: Tile, index: Any) -> Tile:
    """Index a tile with integers, slices, None and `...`."""
    items = index if isinstance(index, tuple) else (index,)
    items = _expand_ellipsis(items, x.type.rank)
    axis = 0
    for item in items:
        if item is None:
            x = expand_dims(x, axis)
        elif isinstance(item, slice):
            x = _slice_axis(x, axis, item)
        elif isinstance(item, (int, IndexExpr)) and not isinstance(item, bool):
            whole = IndexExpr(x.type.shape[axis])
            start = item + whole if isinstance(item, int) and item < 0 else item
            x = squeeze(slice_(x, axis, start, 1), axis)
            continue
        else:
            raise errors.KernelError(
                f"invalid index {item!r} of a tile",
                where=user_line(),
                hint="a tile takes None, slices and integers known before the kernel runs",
            )
        axis += 1
    return x


def _expand_ellipsis(items: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    taken = sum(item is not None and item is not Ellipsis for item in items)
    if taken > rank:
        raise errors.KernelError(
            f"too many indices: {axes_text(taken)} of a tile that has {rank}",
            where=user_line(),
            hint="None adds an axis: x[:, None]",
        )
    if Ellipsis not in items:
        return items
    place = items.index(Ellipsis)
    return (*items[:place], *[slice(None)] * (rank - taken), *items[place + 1 :])


def _slice_axis(x: Tile, axis: int, part: slice) -> Tile:
    if part == slice(None):
        return x
    whole = IndexExpr(x.type.shape[axis])
    start = 0 if part.start is None else part.start
    stop = whole if part.stop is None else part.stop
    start = start + whole if isinstance(start, int) and start < 0 else start
    stop = stop + whole if isinstance(stop, int) and stop < 0 else stop
    step = 1 if part.step is None else part.step
    size = (stop - start + step - 1) // step
    result: Tile = slice_(x, axis, start, size, step)
    return result


OPERATORS["subscript"] = subscript
