"""Bilinear samples of images at places of a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from turbine.capture.declared_ops import KERNELS
from turbine.capture.sizes import is_empty

aten = torch.ops.aten
_BILINEAR = 0
_ZEROS, _BORDER = 0, 1


def grid_sampler(
    image: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool
) -> Tensor:
    """Samples by a kernel, which reads four pixels for each."""
    by_kernel = "sample" in KERNELS and mode == _BILINEAR and padding in (_ZEROS, _BORDER)
    if not by_kernel or image.dtype != torch.float32 or is_empty(image) or is_empty(grid):
        rule = decomposition_table[aten.grid_sampler_2d.default]
        samples: Tensor = rule(image, grid, mode, padding, align_corners)
        return samples
    batch, channels, height, width = image.shape
    rows, columns = grid.shape[1:3]
    across = _neighbors(grid[..., 0].reshape(batch, -1), width, padding, align_corners)
    down = _neighbors(grid[..., 1].reshape(batch, -1), height, padding, align_corners)
    places, weights = [], []
    for y, is_row, share_down in down:
        for x, is_column, share_across in across:
            is_inside = is_row & is_column
            places.append(torch.where(is_inside, y * width + x, -1))
            weights.append(torch.where(is_inside, share_down * share_across, 0.0))
    pixels = image.reshape(batch, channels, height * width)
    sums = KERNELS["sample"](pixels, torch.stack(places, 1), torch.stack(weights, 1))
    sampled: Tensor = sums.view(batch, channels, rows, columns)
    return sampled


def _neighbors(
    place: Tensor, size: Any, padding: int, align_corners: bool
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The two neighbors of places along an axis: index, whether it is inside, and its share."""
    scale = (size - 1) / 2 if align_corners else size / 2
    place = place * scale + (size - 1) / 2
    if padding == _BORDER:
        place = place.clamp(0, size - 1)
    low = place.floor()
    share = place - low

    def inside(at: Tensor) -> Tensor:
        return (at >= 0) & (at <= size - 1)

    pairs = ((low, 1 - share), (low + 1, share))
    return [(_index(at, inside(at)), inside(at), part) for at, part in pairs]


def _index(at: Tensor, is_inside: Tensor) -> Tensor:
    return torch.where(is_inside, at, 0.0).to(torch.int64)


RULES: dict[Any, Callable[..., Any]] = {aten.grid_sampler_2d.default: grid_sampler}
