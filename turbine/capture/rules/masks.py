"""Reads by a mask as reads by index, with data-dependent sizes.

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


RULES: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: index,
    aten.nonzero.default: nonzero,
    aten.masked_select.default: masked_select,
}
