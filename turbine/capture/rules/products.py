"""Products of several tensors, summed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    summed: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Each tensor gets the axes it lacks; the product is summed over some."""
    product = _with_axes(first, expand1) * _with_axes(second, expand2) * _with_axes(third, expand3)
    return product.sum(summed)


def _with_axes(x: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


RULES: dict[Any, Callable[..., Any]] = {aten._trilinear.default: trilinear}
