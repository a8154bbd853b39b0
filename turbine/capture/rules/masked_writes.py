"""Writes where a mask is true: a mask and values in, `where` or writes by integer index out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from turbine.capture.sizes import is_empty

aten = torch.ops.aten
Size = Any  # a number, or a symbol
MASKS = (torch.bool, torch.uint8)


def put_by_masks(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    """index_put where at least one index is a mask."""
    _check_shapes(x, indices)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if len(axes) > 1:
        return _put_beside_indices(x, indices, values, accumulate)
    (axis,), mask = axes, indices[axes[0]]
    assert mask is not None
    return _put_along(x, axis, mask.to(torch.bool), values, accumulate)


def _check_shapes(x: Tensor, indices: Sequence[Tensor | None]) -> None:
    """Raise for a mask of another shape than its axes; PyTorch does so when the op runs."""
    axis = 0
    for index in indices:
        if index is None or index.dtype not in MASKS:
            axis += 1
            continue
        covered = x.shape[axis : axis + index.dim()]
        if any(statically_known_true(a != b) for a, b in zip(index.shape, covered, strict=True)):
            shapes = f"a mask {list(index.shape)} at axis {axis} of a tensor {list(x.shape)}"
            raise IndexError(f"index_put: {shapes}")
        axis += index.dim()


def _put_along(x: Tensor, axis: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Write to the slices selected by a mask of the axes from `axis` on."""
    if axis == 0:
        return _put_rows(x, mask, values, accumulate)
    # The mask takes the place of its axes in the values.
    values = values[(None,) * (x.dim() - mask.dim() + 1 - values.dim())]
    source = list(range(axis, axis + mask.dim()))
    front = list(range(mask.dim()))
    written = _put_rows(x.movedim(source, front), mask, values.movedim(axis, 0), accumulate)
    return written.movedim(front, source).clone(memory_format=torch.contiguous_format)


def _put_rows(x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Write to the rows selected by a mask of the leading axes."""
    rest = x.dim() - mask.dim()
    chosen = mask.view([*mask.shape, *[1] * rest])
    if values.dim() > rest and not _is_one(values.shape[0]):
        return _put_each_row(x, mask, chosen, values, accumulate)
    same = values.reshape(values.shape[values.dim() - min(rest, values.dim()) :]).to(x.dtype)
    return torch.where(chosen, x + same if accumulate else same, x)


def _put_each_row(
    x: Tensor, mask: Tensor, chosen: Tensor, values: Tensor, accumulate: bool
) -> Tensor:
    """Write the n-th row of the values to the n-th place that a mask selects."""
    count = values.shape[0]
    _check_row_count(mask.sum() == count)
    if is_empty(values) or is_empty(x):
        return x.clone()
    places = mask.flatten().cumsum(0) - 1
    behind = x.shape[mask.dim() :]
    rows = values.expand([count, *behind]).to(x.dtype)
    if not isinstance(count, int):
        # An extra row is read where there are none.
        rows = torch.cat([rows, rows.new_zeros([1, *behind])])
    picked = rows.index_select(0, places.clamp(0, rows.shape[0] - 1)).view(x.shape)
    return torch.where(chosen, x + picked if accumulate else picked, x)


def _check_row_count(is_right: Tensor) -> None:
    """Raise at run time unless the masks select as many places as there are rows."""
    torch._assert_async(is_right, "index_put: as many rows as the mask selects")


@dataclass(frozen=True)
class _Mask:
    """A mask beside other indices, and how many of its elements are true."""

    mask: Tensor
    count: Tensor

    def places(self, steps: Tensor) -> list[Tensor]:
        """The places of the true elements, along each axis; a single one is repeated."""
        seen = self.mask.flatten().cumsum(0)
        flat = torch.searchsorted(seen, torch.where(self.count == 1, 0, steps) + 1)
        flat = flat.clamp(max=self.mask.numel() - 1)
        found: list[Tensor] = []
        for size in reversed(self.mask.shape):
            found.insert(0, flat % size)
            flat = flat // size
        return found


def _put_beside_indices(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    """Replace masks beside other indices by the places where they are true.

    These are an index of one axis, whose size follows from the other indices or from the values.
    If both have size 1 there, the mask may select any number of places.
    """
    masks = _masks(indices)
    others = _last_of_others(indices)
    count = _size_of_values(x, indices, values) if _is_one(others) else others
    found = reduce(lambda a, b: torch.where(a == 1, b, a), [one.count for one in masks.values()])
    wanted = found if _is_one(count) else torch.full_like(found, count)
    fits = torch.stack([(one.count == 1) | (one.count == wanted) for one in masks.values()]).all()
    # A single place is repeated for several indices, but not for several values.
    _check_row_count(fits & (found == wanted) if _is_one(others) else fits)
    if is_empty(x) or any(is_empty(one.mask) for one in masks.values()) or _is_zero(count):
        return x.clone()
    if _is_one(count):
        return _put_one_value(x, indices, values, accumulate, found)
    places = _with_places(indices, masks, torch.arange(count, device=x.device))
    written: Tensor = aten.index_put.default(x, places, values, accumulate)
    return written


def _put_one_value(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool, count: Tensor
) -> Tensor:
    """Write the same value to any number of places; the last one is written to repeatedly."""
    masks = _masks(indices)
    steps = torch.arange(max(one.mask.numel() for one in masks.values()), device=x.device)
    places = _with_places(indices, masks, steps.minimum((count - 1).clamp(min=0)))
    if accumulate:
        rest = [1] * _count_behind(x, indices)
        values = torch.where((steps < count).view([-1, *rest]), values, 0)
    return torch.where(count > 0, aten.index_put.default(x, places, values, accumulate), x)


def _masks(indices: Sequence[Tensor | None]) -> dict[int, _Mask]:
    """The masks by their place among the indices."""
    found = {
        place: index.to(torch.bool)
        for place, index in enumerate(indices)
        if index is not None and index.dtype in MASKS
    }
    return {place: _Mask(mask, mask.sum()) for place, mask in found.items()}


def _with_places(
    indices: Sequence[Tensor | None], masks: dict[int, _Mask], steps: Tensor
) -> list[Tensor | None]:
    """The indices, with each mask replaced by the places of its true elements."""
    found: list[Tensor | None] = []
    for place, index in enumerate(indices):
        found += masks[place].places(steps) if place in masks else [index]
    return found


def _last_of_others(indices: Sequence[Tensor | None]) -> Size:
    """The size of the other indices along the axis of the masks, which is their last."""
    shapes = [i.shape for i in indices if i is not None and i.dtype not in MASKS]
    shape: Sequence[Any] = torch.broadcast_shapes(*shapes)
    return shape[-1] if shape else 1


def _size_of_values(x: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Size:
    """The size of the values along the axis of the masks."""
    behind = _count_behind(x, indices)
    return values.shape[-1 - behind] if values.dim() > behind else 1


def _count_behind(x: Tensor, indices: Sequence[Tensor | None]) -> int:
    """How many axes of the values follow those of the indices."""
    is_taken: list[bool] = []
    for index in indices:
        is_mask = index is not None and index.dtype in MASKS
        is_taken += [index is not None] * (index.dim() if is_mask and index is not None else 1)
    axes = [axis for axis, taken in enumerate(is_taken) if taken]
    is_adjacent = axes[-1] - axes[0] == len(axes) - 1
    return x.dim() - 1 - axes[-1] if is_adjacent else x.dim() - len(axes)


def _is_one(size: Size) -> bool:
    return statically_known_true(size == 1)


def _is_zero(size: Size) -> bool:
    return statically_known_true(size == 0)
