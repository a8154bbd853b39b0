"""Embedding bags, by a kernel or a membership matrix, and gradients of embedding tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from turbine.capture.declared_ops import KERNELS

aten = torch.ops.aten
_SUM, _MEAN, _MAX = range(3)


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One row per bag; a bag is the range of `indices` between successive `offsets`."""
    starts = offsets[:-1] if include_last_offset else offsets
    position = torch.arange(indices.shape[0], device=indices.device)
    bag_of = (starts.unsqueeze(1) <= position).sum(0) - 1
    bags = torch.arange(starts.shape[0], device=indices.device)
    member = bag_of == bags.unsqueeze(1)
    if padding_idx >= 0:
        member = member & (indices != padding_idx)
    rows = aten.embedding(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    size = member.sum(1)
    if mode == _MAX:
        pooled, first = _maximum(member, rows)
        return pooled, bag_of, size, indices[first]
    if "embedding_bag" in KERNELS:
        length = torch.full([1], indices.shape[0], dtype=offsets.dtype, device=offsets.device)
        ends = torch.cat([starts[1:], length])
        padding = padding_idx if padding_idx >= 0 else None
        pooled = KERNELS["embedding_bag"](
            weight, indices, starts, ends, per_sample_weights, padding, mode == _MEAN
        )
        return pooled, bag_of, size, torch.zeros_like(size)
    pooled = member.to(rows.dtype) @ rows
    if mode == _MEAN:
        pooled = pooled / size.clamp(min=1).unsqueeze(1).to(rows.dtype)
    return pooled, bag_of, size, torch.zeros_like(size)


def _maximum(member: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each bag and feature, and the first row that has it."""
    chosen = torch.where(member.unsqueeze(2), rows, float("-inf"))
    largest = chosen.amax(1, keepdim=True)
    row = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    first = torch.where(chosen == largest, row, rows.shape[0] - 1).amin(1)
    return torch.where(member.any(1, keepdim=True), largest.squeeze(1), 0.0), first


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the table: the sum over the bags of each row."""
    if sparse or scale_grad_by_freq:
        return NotImplemented
    table = grad.new_zeros([num_weights, grad.shape[1]])
    if mode == _MAX:
        passed = torch.where((bag_size > 0).unsqueeze(1), grad, 0.0)
        return table.scatter_add(0, maximum_indices, passed)
    rows = grad[offset2bag]
    if mode == _MEAN:
        rows = rows / bag_size.clamp(min=1).to(rows.dtype)[offset2bag].unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if padding_idx >= 0:
        rows = torch.where((indices != padding_idx).unsqueeze(1), rows, 0.0)
    return table.index_put([indices], rows, accumulate=True)


def per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the per-sample weights."""
    products = (grad[offset2bag] * aten.embedding(weight, indices)).sum(1)
    if padding_idx < 0:
        return products
    return torch.where(indices != padding_idx, products, 0.0)


def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """The gradient of the table, with flattened indices: the compiler confuses two dynamic axes."""
    rows = grad.reshape(-1, grad.shape[-1])
    rule = decomposition_table[aten.embedding_dense_backward.default]
    table: Tensor = rule(rows, indices.reshape(-1), num_weights, padding_idx, scale_grad_by_freq)
    return table


RULES: dict[Any, Callable[..., Any]] = {
    aten._embedding_bag.default: embedding_bag,
    aten._embedding_bag_forward_only.default: embedding_bag,
    aten.embedding_dense_backward.default: embedding_dense_backward,
    aten._embedding_bag_backward.default: embedding_bag_backward,
    aten._embedding_bag_per_sample_weights_backward.default: per_sample_weights_backward,
}
