"""Reads by a mask as reads by index, and other results with data-dependent sizes.

For exported programs; under torch.compile, ops with data-dependent sizes run in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Replace masks by indices: along flattened axes, or along each axis beside other indices."""
    axes = [axis for axis, chosen in enumerate(indices) if chosen is not None]
    masks = [chosen for chosen in indices if chosen is not None and chosen.dtype in _MASKS]
    if not masks:
        return NotImplemented
    if len(axes) > 1:
        return aten.index.Tensor(x, [one for chosen in indices for one in _indices(chosen)])
    (axis,), (mask,) = axes, masks
    covered = x.flatten(axis, axis + mask.dim() - 1) if mask.dim() else x.unsqueeze(axis)
    return covered.index_select(axis, _places(mask))


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where a broadcast mask is true."""
    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1).index_select(0, _places(mask))


def _places(mask: Tensor) -> Tensor:
    return mask.reshape(-1).nonzero()[:, 0]


def _indices(chosen: Tensor | None) -> list[Tensor | None]:
    if chosen is None or chosen.dtype not in _MASKS:
        return [chosen]
    places = chosen.nonzero()
    return [places[:, axis] for axis in range(chosen.dim())]


def nonzero(x: Tensor) -> Tensor:
    """The indices of nonzero elements; a tensor of rank 0 has rows without coordinates."""
    return NotImplemented if x.dim() else x.reshape(1).nonzero()[:, :0]


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct elements in order; where each element went, and how often it occurs."""
    ordered, places = x.flatten().sort(stable=True)
    values, group, counts = _groups(ordered)
    inverse = torch.zeros_like(group).scatter(0, places, group).view(x.shape)
    return values, *_wanted(inverse, counts, return_inverse, return_counts)


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The first of every run of equal elements, the run of each element, and their lengths."""
    if dim is not None and x.dim() > 1:
        return NotImplemented
    values, group, counts = _groups(x.flatten())
    return values, *_wanted(group.view(x.shape), counts, return_inverse, return_counts)


def _groups(row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first element of each run, the run of each element, and the lengths of runs."""
    is_first = torch.cat([row.new_ones(1, dtype=torch.bool), row[1:] != row[:-1]])[: row.shape[0]]
    firsts = is_first.nonzero()[:, 0]
    ends = torch.cat([firsts[1:], firsts.new_full((1,), row.shape[0])])
    return row.index_select(0, firsts), is_first.cumsum(0) - 1, ends - firsts


def _wanted(
    inverse: Tensor, counts: Tensor, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor]:
    nothing = inverse.new_empty(0)
    return (inverse if return_inverse else nothing), (counts if return_counts else nothing)


def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """Each index as often as its number says."""
    ends = repeats.to(torch.int64).cumsum(0)
    count: Any = output_size
    if count is None:
        count = ends[-1].item() if repeats.shape[0] else 0
        torch._check(count >= 0)
    places = torch.arange(count, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


RULES: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: index,
    aten.nonzero.default: nonzero,
    aten.masked_select.default: masked_select,
    aten._unique2.default: unique,
    aten.unique_consecutive.default: unique_consecutive,
    aten.repeat_interleave.Tensor: repeat_interleave,
}
