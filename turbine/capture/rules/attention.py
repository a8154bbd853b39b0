"""Attention as two products around a softmax, without the guards a case does not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scores are kept in f32 or wider, as PyTorch's fused kernels keep them."""
    if dropout_p > 0.0:
        return NotImplemented
    if enable_gqa:
        key, value = _repeat_heads(key, query), _repeat_heads(value, query)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    chosen = torch.softmax(scores, -1) if attn_mask is None else _masked_softmax(scores, attn_mask)
    result = chosen.to(value.dtype) @ value
    return _laid_out_like(query, result)


def _laid_out_like(query: Tensor, result: Tensor) -> Tensor:
    """The fused kernels give a result the memory order of the query, and models view it so."""
    strides = query.stride()
    order = sorted(range(query.dim()), key=lambda axis: -_hint(strides[axis]))
    back = sorted(range(query.dim()), key=order.__getitem__)
    return result.permute(order).contiguous().permute(back)


def _hint(stride: int | torch.SymInt) -> int:
    """A size at the example's values; comparing symbols would restrict the program to them."""
    return stride if isinstance(stride, int) else int(stride.node.hint or 0)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """A row that sees nothing attends to nothing, where a plain softmax would give nan."""
    hidden = float("-inf")
    scores = scores.masked_fill(~mask, hidden) if mask.dtype == torch.bool else scores + mask
    blind = (scores == hidden).all(-1, keepdim=True)
    return torch.softmax(scores, -1).masked_fill(blind, 0.0)


def _repeat_heads(heads: Tensor, query: Tensor) -> Tensor:
    """Each key or value head once for every query head that reads it."""
    times = query.shape[-3] // heads.shape[-3]
    return heads if times == 1 else heads.repeat_interleave(times, -3)


RULES: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}
