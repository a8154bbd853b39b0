"""Embedding bags: look up rows, then reduce each bag by a product with its membership matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
    """One row per bag; bags are the runs of `indices` between successive `offsets`."""
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
    pooled = _maximum(member, rows) if mode == _MAX else member.to(rows.dtype) @ rows
    if mode == _MEAN:
        pooled = pooled / size.clamp(min=1).unsqueeze(1).to(rows.dtype)
    return pooled, bag_of, size, torch.zeros_like(size)


def _maximum(member: Tensor, rows: Tensor) -> Tensor:
    chosen = torch.where(member.unsqueeze(2), rows, float("-inf"))
    return torch.where(member.any(1, keepdim=True), chosen.amax(1), 0.0)


RULES: dict[Any, Callable[..., Any]] = {
    aten._embedding_bag.default: embedding_bag,
    aten._embedding_bag_forward_only.default: embedding_bag,
}
