"""Convolutions the compiler mishandles, as ones it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """Give an axis whose result has size 1 a stride of 1: IREE 3.13 fails on larger ones."""
    if transposed:
        return NotImplemented
    stride, padding, dilation = (_each_axis(v, x.dim() - 2) for v in (stride, padding, dilation))
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    collapses = [s > 1 and (n + 2 * p - d * (k - 1) - 1) // s == 0 for n, k, s, p, d in sizes]
    if not any(collapses):
        return NotImplemented
    unit = [1 if collapse else s for collapse, s in zip(collapses, stride, strict=True)]
    y = aten.convolution(
        x, weight, bias, unit, padding, dilation, transposed, output_padding, groups
    )
    for axis, collapse in enumerate(collapses, start=2):
        y = y.narrow(axis, 0, 1) if collapse else y
    return y


def _each_axis(values: list[int], count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


RULES: dict[Any, Callable[..., Any]] = {aten.convolution.default: convolution}
