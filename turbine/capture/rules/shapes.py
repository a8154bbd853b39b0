"""Views: of tensors with other strides than the model was traced with, and several at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def view(x: Tensor, size: list[int]) -> Tensor:
    """A rule may give a result other strides than the op it replaces; values have none in IR."""
    if x.is_contiguous():
        return NotImplemented
    return aten.view.default(x.contiguous(), size)


def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Pieces of one size, as views of their own: each is free on either side of a boundary."""
    length = x.shape[dim]
    if size == 0:
        return NotImplemented
    starts = range(0, max(length, 1), size)
    return [x.narrow(dim, start, min(size, length - start)) for start in starts]


def split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """Pieces one after another."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(x.narrow(dim, start, size))
        start = start + size
    return pieces


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Every slice along an axis."""
    return [x.select(dim, index) for index in range(x.shape[dim])]


RULES: dict[Any, Callable[..., Any]] = {
    aten.view.default: view,
    aten.split.Tensor: split,
    aten.unsafe_split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unsafe_split_with_sizes.default: split_with_sizes,
    aten.unbind.int: unbind,
}
