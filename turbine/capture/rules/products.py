"""Matmuls that the compiler gets wrong, and trilinear products."""

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
    """The sum over some axes of the product of three unsqueezed tensors."""
    product = _with_axes(first, expand1) * _with_axes(second, expand2) * _with_axes(third, expand3)
    return product.sum(summed)


def _with_axes(x: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def product(a: Tensor, b: Tensor) -> Tensor:
    """A row times a matrix of dynamic width, as a transposed matmul.

    IREE 3.13 rounds the width up to a tile, which shows if the result is read twice.
    """
    return aten.mm.default(b.t(), a.t()).t() if _is_row_of_dynamic_width(a, b) else NotImplemented


def product_and_sum(
    x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """addmm of such a row, as a matmul and an add."""
    if not _is_row_of_dynamic_width(a, b):
        return NotImplemented
    scaled = alpha * aten.mm.default(a, b)
    return beta * x + scaled if beta else scaled


def scaled_product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """The product of 8-bit matrices with scales of matrices, rows or columns, added in float32."""
    total = torch.mm(a.to(torch.float32), b.to(torch.float32)) * scale_a * scale_b
    if bias is not None:
        total = total + bias
    dtype = out_dtype or a.dtype
    if scale_result is not None and dtype.itemsize == 1:
        total = total * scale_result
    return total.to(dtype)


def _is_row_of_dynamic_width(a: Tensor, b: Tensor) -> bool:
    rows, width = a.shape[0], b.shape[1]
    return isinstance(rows, int) and rows == 1 and not isinstance(width, int)


RULES: dict[Any, Callable[..., Any]] = {
    aten.mm.default: product,
    aten.addmm.default: product_and_sum,
    aten._trilinear.default: trilinear,
    aten._scaled_mm.default: scaled_product,
}
