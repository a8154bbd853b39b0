"""Matmuls that the compiler gets wrong, and products of three tensors or of groups of rows."""

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
    is_bilinear = (expand1, expand2, expand3, summed) == ([1, 3], [0], [1, 2], [2, 3])
    if is_bilinear and first.dtype in _ADDED_AS_THEY_ARE:
        outputs, left, right = second.shape
        halves = first @ second.transpose(0, 1).reshape(left, outputs * right)
        return (halves.view(-1, outputs, right) @ third.unsqueeze(2)).squeeze(2)
    product = _with_axes(first, expand1) * _with_axes(second, expand2) * _with_axes(third, expand3)
    return product.sum(summed)


# Matmuls of narrower dtypes round their sums.
_ADDED_AS_THEY_ARE = (torch.float32, torch.float64)


def product_with_vector(a: Tensor, x: Tensor) -> Tensor:
    """A matrix times a vector as a matmul, for which the library has kernels."""
    is_float = a.is_floating_point()
    return aten.mm.default(a, x.unsqueeze(1)).squeeze(1) if is_float else NotImplemented


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


def batched_product_and_sum(
    x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """baddbmm, laid out as the product is, not as x: PyTorch's decomposition adds the other way."""
    scaled = _scaled(aten.bmm.default(a, b), alpha)
    return scaled + _scaled(x, beta) if beta else scaled


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return x
    return x * (factor if x.is_floating_point() or x.is_complex() else int(factor))


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


def grouped_mm(
    a: Tensor,
    b: Tensor,
    ends: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Products of matrices with groups of rows or columns, which end where `ends` says."""
    if bias is not None:
        return NotImplemented
    if ends is None:
        product = torch.bmm(a, b)
    elif a.dim() == b.dim():
        product = torch.matmul(a, torch.where(_members(b, ends), b, 0))
    elif a.dim() == 2:
        product = expert_product(a, b, ends)
    else:
        product = expert_product(b.mT, a.mT, ends).mT
    return product.to(out_dtype or a.dtype)


def expert_product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Each row of x times the matrix of its group, as a layer of experts has it.

    All matrices are applied to all rows, unless rows are so few that it pays to copy theirs.
    """
    rows, groups = x.shape[0], weights.shape[0]
    if isinstance(rows, int) and rows * _COPIES_PER_MATRIX <= groups:
        group = (torch.arange(rows).unsqueeze(1) >= ends).sum(1)
        product = torch.bmm(x.unsqueeze(1), weights[group.clamp(max=groups - 1)]).squeeze(1)
        return torch.where((group < groups).unsqueeze(1), product, 0)
    return torch.where(_members(x, ends), torch.matmul(x, weights), 0).sum(0, dtype=x.dtype)


def expert_gradients(
    x: Tensor, weights: Tensor, ends: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of such a product by x and by the matrices."""
    of_weights = torch.matmul(x.t(), torch.where(_members(grad, ends), grad, 0))
    return expert_product(grad, weights.mT, ends), of_weights.to(weights.dtype)


# A copy is written and read, the matrix of a group is only read.
_COPIES_PER_MATRIX = 3


def _members(x: Tensor, ends: Tensor) -> Tensor:
    """Which rows of x are in each group, [groups, rows, 1]."""
    place = torch.arange(x.shape[0])
    starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    return ((place >= starts.unsqueeze(1)) & (place < ends.unsqueeze(1))).unsqueeze(2)


def _is_row_of_dynamic_width(a: Tensor, b: Tensor) -> bool:
    rows, width = a.shape[0], b.shape[1]
    return isinstance(rows, int) and rows == 1 and not isinstance(width, int)


RULES: dict[Any, Callable[..., Any]] = {
    aten.mm.default: product,
    aten.mv.default: product_with_vector,
    aten.addmm.default: product_and_sum,
    aten.baddbmm.default: batched_product_and_sum,
    aten._trilinear.default: trilinear,
    aten._scaled_mm.default: scaled_product,
    aten._grouped_mm.default: grouped_mm,
}
OF_PACKAGES: dict[str, Callable[..., Any]] = {
    "transformers::grouped_mm_fallback": expert_product,
    "transformers::grouped_mm_fallback_backward": expert_gradients,
}
