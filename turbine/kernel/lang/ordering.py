"""Sort and top-k along an axis; masked-off lanes go to the end and stay masked off."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import is_never_negative
from turbine.kernel.lang.arithmetic import less
from turbine.kernel.lang.control_flow import result
from turbine.kernel.lang.creation import iota
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.reductions import sum as sum_of
from turbine.kernel.lang.shapes import axis_of, mask_of
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import declare_internal, shape_of
from turbine.kernel.trace.tracer import IndexExpr, Tile, user_line
from turbine.kernel.trace.types import I64, TileType
from turbine.kernel.trace.validity import Bound, Valid


def sort(
    x: Any,
    axis: int = -1,
    descending: bool = False,
    *,
    stable: bool = True,
    with_indices: bool = False,
) -> Any:
    """Elements sorted along an axis, in ascending order unless `descending`.

    The sort is always stable, whatever `stable` is. nan counts as the largest number. Masked-off
    elements go to the end, in either direction, and stay masked off.

    Args:
        with_indices: Also return the index of each element before the sort, as `sort_with_indices`.

    Example::

        tkl.sort((tkl.arange(5) * 2) % 5)  # [0 1 2 3 4]
        tkl.sort((tkl.arange(5) * 2) % 5, descending=True)  # [4 3 2 1 0]
    """
    values, places = _sort(x, axis, descending, None, "sort")
    return (values, places) if with_indices else values


def sort_with_indices(
    x: Any, axis: int = -1, descending: bool = False, *, stable: bool = True
) -> tuple[Tile, Tile]:
    """Elements sorted along an axis as by `tkl.sort`, and their indices before as i64.

    Example::

        values, indices = tkl.sort_with_indices((tkl.arange(5) * 2) % 5)
        values  # [0 1 2 3 4]
        indices  # [0 3 1 4 2]
    """
    return _sort(x, axis, descending, None, "sort_with_indices")


def argsort(x: Any, axis: int = -1, descending: bool = False, *, stable: bool = True) -> Tile:
    """Indices that sort x along an axis, as i64: those of `tkl.sort_with_indices`.

    Example::

        tkl.argsort((tkl.arange(5) * 2) % 5)  # [0 3 1 4 2]
    """
    return _sort(x, axis, descending, None, "argsort")[1]


def topk(x: Any, k: Any, axis: int = -1, largest: bool = True) -> tuple[Tile, Tile]:
    """The k largest elements along an axis, largest first, and their indices as i64.

    With `largest=False`, the k smallest, smallest first. Of equal elements, the first ones are
    taken. If fewer than k elements are not masked off, the rest of the result is masked off.

    Example::

        values, indices = tkl.topk((tkl.arange(5) * 2) % 5, 2)
        values  # [4 3]
        indices  # [2 4]
    """
    return _sort(x, axis, largest, k, "topk")


def _sort(x: Any, axis: int, descending: bool, count: Any, what: str) -> tuple[Tile, Tile]:
    tile = as_tile(x, None, what)
    place = axis_of(axis, tile.type.rank, f"tkl.{what}")
    whole = tile.type.shape[place]
    (wanted,) = (whole,) if count is None else shape_of(count, f"tkl.{what}")
    missing = (whole - wanted).number
    if missing is not None and missing < 0:
        raise errors.KernelError(
            f"tkl.{what} of {tile!r}: k={wanted} is larger than the axis, {whole}",
            where=user_line(),
            hint="k is at most the size of the axis",
        )
    given = {"bounds": tile.valid.bounds, "masks": tile.valid.along([place]).masks}
    node = sort_op.record(tile, place, bool(descending), wanted, **given)
    shape = (*tile.type.shape[:place], wanted, *tile.type.shape[place + 1 :])
    types = (TileType(shape, tile.dtype), TileType(shape, I64))
    node.meta["types"] = types
    valid = _valid_front(tile, place, TileType(shape, I64))
    values, places = (result.add(node, n, type=t, valid=valid) for n, t in enumerate(types))
    return values, places


def _valid_front(tile: Tile, axis: int, type: TileType) -> Valid:
    """The valid lanes of the result: the first ones of each row."""
    along, kept = tile.valid.along([axis]), tile.valid.apart_from([axis])
    if not along.masks and all(map(_starts_inside, along.bounds)):
        return Valid((*kept.bounds, *along.bounds), kept.masks)
    valid_lanes = mask_of(tile.type.shape, Valid(tile.valid.bounds, along.masks))
    counts = sum_of(valid_lanes, axis, keepdims=True)
    lanes = iota(list(map(IndexExpr, type.shape)), axis)
    return Valid(kept.bounds, (*kept.masks, less(lanes, counts)))


def _starts_inside(bound: Bound) -> bool:
    """Whether the lanes in bounds are the first ones already."""
    return is_never_negative(bound.offset, tracer.current("tkl.sort").ranges)


@declare_internal
def sort_op(
    x: Tensor, axis: int, descending: bool, count: int, within: Tensor
) -> tuple[Tensor, Tensor]:
    """The first `count` elements of a stable sort along an axis, and their indices."""
    by_value = torch.sort(x, dim=axis, descending=descending, stable=True).indices
    lanes = within.expand(x.shape).gather(axis, by_value)
    front = torch.sort((~lanes).to(torch.uint8), dim=axis, stable=True).indices
    places = by_value.gather(axis, front).narrow(axis, 0, count)
    return x.gather(axis, places), places
