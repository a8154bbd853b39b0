"""Attention as two matmuls around a softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turbine.capture.sizes import hint, is_empty

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
    """Attention with scores in f32 or wider, as in PyTorch's fused kernels."""
    if dropout_p > 0.0:
        return NotImplemented
    if enable_gqa:
        key, value = _repeat_heads(key, query), _repeat_heads(value, query)
    scores = _scores(query, key, is_causal, scale)
    chosen = torch.softmax(scores, -1) if attn_mask is None else _masked_softmax(scores, attn_mask)
    result = chosen.to(value.dtype) @ value
    return _laid_out_like(query, result)


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU attention; also returns the logsumexp of each row."""
    keys, values = _repeat_heads(key, query), _repeat_heads(value, query)
    scores = _scores(query, keys, is_causal, scale)
    scores = scores if attn_mask is None else scores + attn_mask
    result = _zeroed_softmax(scores).to(value.dtype) @ values
    # Of inference nothing below is left.
    peak = scores.amax(-1, keepdim=True)
    peak = torch.where(peak == float("-inf"), 0.0, peak)  # a fully masked row
    total = (scores - peak).exp().sum(-1, keepdim=True)
    return _laid_out_like(query, result), (total.log() + peak).squeeze(-1)


def flash_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; the attention weights are recomputed."""
    keys, values = _repeat_heads(key, query), _repeat_heads(value, query)
    factor = _factor(query, scale)
    scores = _scores(query, keys, is_causal, scale)
    scores = scores if attn_mask is None else scores + attn_mask
    blind = logsumexp == float("-inf")
    rows = torch.where(blind, float("inf"), logsumexp).unsqueeze(-1)
    chosen = (scores - rows).exp()
    grad_values = chosen.to(grad.dtype).transpose(-2, -1) @ grad
    seen = (grad @ values.transpose(-2, -1)).to(chosen.dtype)
    drift = (grad * result).to(chosen.dtype).sum(-1, keepdim=True)
    grad_scores = (chosen * (seen - drift) * factor).to(query.dtype)
    grad_query = grad_scores @ keys
    grad_keys = grad_scores.transpose(-2, -1) @ query
    return (
        _laid_out_like(query, grad_query),
        _laid_out_like(key, _sum_heads(grad_keys, key)),
        _laid_out_like(value, _sum_heads(grad_values, value)),
    )


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    scores = (query * _factor(query, scale)) @ key.transpose(-2, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if not is_causal:
        return scores
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~seen, float("-inf"))


def _factor(query: Tensor, scale: float | None) -> float:
    if scale is not None:
        return scale
    return query.shape[-1] ** -0.5 if not is_empty(query) else 1.0


def _laid_out_like(query: Tensor, result: Tensor) -> Tensor:
    """The result in the memory order of the query, as the fused kernels return it."""
    strides = query.stride()
    order = sorted(range(query.dim()), key=lambda axis: -hint(strides[axis]))
    back = sorted(range(query.dim()), key=order.__getitem__)
    return result.permute(order).contiguous().permute(back)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    is_bool = mask.dtype == torch.bool
    return _zeroed_softmax(scores.masked_fill(~mask, _HIDDEN) if is_bool else scores + mask)


def _zeroed_softmax(scores: Tensor) -> Tensor:
    """Softmax that is zero for fully masked rows, where a plain one is nan."""
    blind = (scores == _HIDDEN).all(-1, keepdim=True)
    return torch.softmax(scores, -1).masked_fill(blind, 0.0)


_HIDDEN = float("-inf")


def _repeat_heads(heads: Tensor, query: Tensor) -> Tensor:
    """Repeat each key or value head for the query heads that share it."""
    times = query.shape[-3] // heads.shape[-3]
    return heads if times == 1 else heads.repeat_interleave(times, -3)


def _sum_heads(grads: Tensor, heads: Tensor) -> Tensor:
    """The gradient of heads that `_repeat_heads` repeated."""
    times = grads.shape[-3] // heads.shape[-3]
    if times == 1:
        return grads
    return grads.unflatten(-3, (heads.shape[-3], times)).sum(-3)


RULES: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_attention_backward,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}
