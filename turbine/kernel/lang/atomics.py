"""Changes of a buffer's elements that programs may make at once: none gets lost.

The order in which they happen is not fixed.
"""

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
from turbine.kernel.op import declare_internal
from turbine.kernel.tracer import Buffer, Tile, user_line
from turbine.kernel.types import BOOL
from turbine.kernel.validity import Valid, both


def atomic_add(buffer: Any, index: Any, value: Any, mask: Any = None, *, check: Any = None) -> Tile:
    """Add a tile to the block of a buffer at an index, or to elements that tiles of integers name.

    Gives what was there before. The buffer is an InOutBuffer, or an output that is `.filled(0)`.
    Lanes outside the buffer, masked-off ones, and those where `mask` does not hold, are left out.
    An element that is named several times is changed each time. An index that was loaded is
    checked as by tkl.load; `check=False` leaves such lanes out.

        tkl.atomic_add(histogram, (bins,), 1)
    """
    return _atomic("add", buffer, index, value, mask, check)


def atomic_max(buffer: Any, index: Any, value: Any, mask: Any = None, *, check: Any = None) -> Tile:
    """Make elements of a buffer at least as large as a tile's; as atomic_add does it."""
    return _atomic("max", buffer, index, value, mask, check)


def atomic_min(buffer: Any, index: Any, value: Any, mask: Any = None, *, check: Any = None) -> Tile:
    """Make elements of a buffer at most as large as a tile's; as atomic_add does it."""
    return _atomic("min", buffer, index, value, mask, check)


def _atomic(kind: str, buffer: Any, index: Any, value: Any, mask: Any, check: Any) -> Tile:
    what = f"tkl.atomic_{kind}"
    checked = _changeable(buffer_of(buffer, what), what)
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


def _changeable(buffer: Buffer, what: str) -> Buffer:
    check_writable(buffer, what)
    if buffer.type.usage == "temporary":
        raise errors.KernelError(
            f"{what} to {buffer.name}, which belongs to one program: {buffer.type}",
            where=user_line(),
            hint="load it, add, and store the sum",
        )
    if buffer.type.usage == "output" and buffer.type.fill is None:
        raise errors.KernelError(
            f"{what} to {buffer.name}, which holds nothing yet: {buffer.type}",
            where=user_line(),
            hint=f"make it {buffer.type}.filled(0), or an InOutBuffer",
        )
    if buffer.type.dtype == BOOL:
        raise errors.KernelError(
            f"{what} to {buffer.name}, which holds bools: {buffer.type}",
            where=user_line(),
            hint="tkl.store writes the same bool from many programs as well as from one; "
            "use tkl.i32 to count",
        )
    return buffer


@declare_internal
def atomic_block(
    buffer: Tensor, index: Sequence[int], value: Tensor, kind: str, within: Tensor
) -> Tensor:
    """Change the block of a buffer at an index; gives what was there."""
    places = torch.nonzero(within.expand(value.shape))
    return update(
        buffer, places, places + torch.tensor(index, dtype=torch.int64), value, CHANGES[kind]
    )


@declare_internal
def atomic_scatter(
    buffer: Tensor, index: Sequence[Tensor], value: Tensor, kind: str, within: Tensor
) -> Tensor:
    """Change the elements that tiles of integers name, one lane after the other."""
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
    """Change elements by lanes of a value, one after the other; gives what was there."""
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
