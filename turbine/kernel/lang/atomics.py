"""Atomic updates of a buffer, which several programs may make concurrently, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.kernel.lang.memory import (
    apply_mask,
    as_offset,
    block_bounds,
    broadcast_scatter,
    buffer_of,
    check_block,
    check_writable,
    places_of,
    value_for,
)
from turbine.kernel.lang.shapes import new_axes, squeeze
from turbine.kernel.trace.op import declare_internal
from turbine.kernel.trace.tracer import Buffer, Tile, user_line
from turbine.kernel.trace.types import BOOL
from turbine.kernel.trace.validity import Valid, both


def atomic_add(buffer: Any, index: Any, value: Any, mask: Any = None, *, check: Any = None) -> Tile:
    """Atomically add a tile to a block of a buffer, or to the elements that tiles of integers name.

    Several programs may change one element; the order is unspecified. An element that one tile
    names several times is changed each time. Elements that are masked off, lie outside the buffer,
    or where `mask` is False are left out.

    Args:
        buffer: An in-out buffer, or an output with an initial value, such as `.filled(0)`.
        index: Where the block starts, or tiles of integers, as in `tkl.store`.
        value: A tile or number, converted to the dtype of the buffer.
        mask: A tile of bools, broadcast to the tile.
        check: Whether an index outside the buffer is an error, as in `tkl.load`.

    Returns:
        A tile of the values before the change.

    Example::

        @tk.gen.kernel(N // B, blocks={B: 4})
        def histogram(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[3, tkl.i32].filled(0)):
            tkl.atomic_add(y, (tkl.load(x, (tkl.program_id(0) * B,), (B,)),), 1)

        histogram(torch.tensor([0, 2, 2, 1, 2]))  # tensor([1, 1, 3], dtype=torch.int32)
    """
    return _atomic("add", buffer, index, value, mask, check)


def atomic_max(buffer: Any, index: Any, value: Any, mask: Any = None, *, check: Any = None) -> Tile:
    """Atomically replace elements of a buffer by the maximum of them and a tile.

    Arguments and result are those of `tkl.atomic_add`. nan replaces any number.

    Example::

        @tk.gen.kernel(N // B, blocks={B: 4})
        def largest(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[1, tkl.i64].filled(0)):
            tkl.atomic_max(y, (0,), tkl.max(tkl.load(x, (tkl.program_id(0) * B,), (B,))))

        largest(torch.tensor([3, 1, 4, 1, 5]))  # tensor([5])
    """
    return _atomic("max", buffer, index, value, mask, check)


def atomic_min(buffer: Any, index: Any, value: Any, mask: Any = None, *, check: Any = None) -> Tile:
    """Atomically replace elements of a buffer by the minimum of them and a tile.

    Arguments and result are those of `tkl.atomic_add`. nan replaces any number.

    Example::

        @tk.gen.kernel(N // B, blocks={B: 4})
        def smallest(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[1, tkl.i64].filled(9)):
            tkl.atomic_min(y, (0,), tkl.min(tkl.load(x, (tkl.program_id(0) * B,), (B,))))

        smallest(torch.tensor([3, 1, 4, 1, 5]))  # tensor([1])
    """
    return _atomic("min", buffer, index, value, mask, check)


def _atomic(kind: str, buffer: Any, index: Any, value: Any, mask: Any, check: Any) -> Tile:
    what = f"tkl.atomic_{kind}"
    checked = _check_buffer(buffer_of(buffer, what), what)
    places = places_of(checked, index, what)
    tile = value_for(checked, value, what)
    if any(isinstance(place, Tile) and place.type.rank for place in places):
        named, spread, valid = broadcast_scatter(checked, places, tile, mask, check, what)
        given = {"bounds": valid.bounds, "masks": valid.masks}
        return atomic_scatter.add(
            checked, named, spread, kind, type=spread.type, valid=valid, **given
        )
    offsets = tuple(as_offset(place) for place in places)
    missing = len(offsets) - tile.type.rank
    if missing < 0:
        raise errors.KernelError(
            f"{what}: a tile {tile.type} for {checked.name}, which has fewer axes: {checked.type}",
            where=user_line(),
            hint="a tile has at most as many axes as the buffer",
        )
    block = new_axes(tile, missing)
    if mask is not None:
        block = apply_mask(block, mask, what)
    check_block(checked, places, block, check, what)
    valid = both([Valid(block_bounds(checked, offsets, block.type.shape)), block.valid])
    given = {"bounds": valid.bounds, "masks": valid.masks}
    old = atomic_block.add(checked, offsets, block, kind, type=block.type, valid=valid, **given)
    for _ in range(missing):
        old = squeeze(old, 0)
    return old


def _check_buffer(buffer: Buffer, what: str) -> Buffer:
    check_writable(buffer, what)
    if buffer.type.usage == "temporary":
        raise errors.KernelError(
            f"{what} to {buffer.name}, which belongs to one program: {buffer.type}",
            where=user_line(),
            hint="use tkl.load and tkl.store",
        )
    if buffer.type.usage == "output" and buffer.type.fill is None:
        raise errors.KernelError(
            f"{what} to {buffer.name}, which is uninitialized: {buffer.type}",
            where=user_line(),
            hint=f"make it {buffer.type}.filled(0), or an InOutBuffer",
        )
    if buffer.type.dtype == BOOL:
        raise errors.KernelError(
            f"{what} to {buffer.name}, which holds bools: {buffer.type}",
            where=user_line(),
            hint="use tkl.store to set flags, or tkl.i32 to count",
        )
    return buffer


@declare_internal
def atomic_block(
    buffer: Tensor, index: Sequence[int], value: Tensor, kind: str, within: Tensor
) -> Tensor:
    """Update the block of a buffer at an index; return the old values."""
    places = torch.nonzero(within.expand(value.shape))
    return update(
        buffer, places, places + torch.tensor(index, dtype=torch.int64), value, CHANGES[kind]
    )


@declare_internal
def atomic_scatter(
    buffer: Tensor, index: Sequence[Tensor], value: Tensor, kind: str, within: Tensor
) -> Tensor:
    """Update the elements at index tiles, lane by lane; return the old values."""
    places = torch.nonzero(within.expand(value.shape))
    targets = torch.stack([i[tuple(places.T)] for i in index], dim=1)
    return update(buffer, places, targets, value, CHANGES[kind])


def update(
    buffer: Tensor,
    places: Tensor,
    targets: Tensor,
    value: Tensor,
    change: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Update elements lane by lane; return the old values."""
    old = torch.zeros_like(value, memory_format=torch.contiguous_format)
    rows = zip(map(tuple, places.tolist()), map(tuple, targets.tolist()), strict=True)
    for place, target in rows:
        old[place] = buffer[target]
        buffer[target] = change(buffer[target], value[place])
    return old


CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}
