"""Variance, and batch, layer and group normalization, with statistics in f32 or wider."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten


def variance(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Variance of few or dynamically many elements, for which the compiler may divide by -1."""
    if not x.dim():
        return torch.var(x.view(1), [0], correction=correction).view(())
    axes = [axis % x.dim() for axis in dim] if dim else list(range(x.dim()))
    subtracted = 1.0 if correction is None else correction
    total = math.prod(x.shape[axis] for axis in axes)
    if x.dtype.is_complex or (isinstance(total, int) and total > subtracted):
        return NotImplemented
    # In f64 if the divisor is 0: squares must not underflow, since 0 / 0 is nan, not inf.
    least = torch.float64 if isinstance(total, int) else torch.float32
    wide = x.to(torch.promote_types(x.dtype, least))
    centered = wide - wide.mean(axes, keepdim=True)
    count = torch.ones_like(wide).sum(axes, keepdim=keepdim)
    freedom = (count - subtracted).clamp(min=0)
    return ((centered * centered).sum(axes, keepdim=keepdim) / freedom).to(x.dtype)


def deviation(x: Tensor, *args: Any, **options: Any) -> Tensor:
    """The standard deviation, with the arguments of `variance`.

    Computed in float64 for float32, as in PyTorch: the square of a small float32 underflows.
    """
    if x.dtype.is_complex:
        return NotImplemented
    wide = torch.float64 if x.dtype == torch.float32 else x.dtype
    return torch.var(x.to(wide), *args, **options).sqrt().to(x.dtype)


def variance_and_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, keepdim: bool = False, **options: Any
) -> tuple[Tensor, Tensor]:
    """The variance and the mean."""
    axes = list(dim or range(x.dim()))
    return torch.var(x, axes, keepdim=keepdim, **options), x.mean(axes, keepdim=keepdim)


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize over the last axes; also returns the mean and the reciprocal deviation."""
    y, mean, inverse = _normalize(x, list(range(x.dim() - len(shape), x.dim())), eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype), mean.to(x.dtype), inverse.to(x.dtype)


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize over groups of channels; also returns the mean and the reciprocal deviation."""
    grouped = x.reshape(batch, groups, channels // groups, inner)
    y, mean, inverse = _normalize(grouped, [2, 3], eps)
    y = y.reshape(x.shape)
    if weight is not None:
        y = y * _per_channel(weight, x)
    if bias is not None:
        y = y + _per_channel(bias, x)
    mean, inverse = mean.reshape(batch, groups), inverse.reshape(batch, groups)
    return y.to(x.dtype), mean.to(x.dtype), inverse.to(x.dtype)


def _normalize(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized tensor, the mean and the reciprocal deviation, in f32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(axes, keepdim=True)
    centered = wide - mean
    inverse = torch.rsqrt((centered * centered).mean(axes, keepdim=True) + eps)
    return centered * inverse, mean, inverse


def batch_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with running statistics: one multiply and one add per element."""
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    y = x * _per_channel(scale, x) + _per_channel(shift, x)
    return y.to(x.dtype), x.new_empty(0), x.new_empty(0)


def batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_variance: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Normalize with statistics of the batch; also returns the new running statistics."""
    if not training:
        y, *_ = batch_norm_inference(x, weight, bias, running_mean, running_variance, momentum, eps)
        return y, x.new_empty(0), x.new_empty(0), running_mean, running_variance
    y, mean, inverse, variance = _normalize_batch(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    unbiased = variance * (count / (count - 1))
    return (
        y,
        mean,
        inverse,
        _blend(running_mean, mean, momentum),
        _blend(running_variance, unbiased, momentum),
    )


def batch_norm_without_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with statistics of the batch, where none are kept."""
    y, mean, inverse, _ = _normalize_batch(x, weight, bias, eps)
    return y, mean, inverse


def _normalize_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normalized batch, its mean, the inverse of its standard deviation, and its variance."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    # In float64, as in PyTorch: the gradient of the weight is a sum of differences from the mean.
    mean = wide.mean(axes, dtype=torch.float64).to(wide.dtype)
    centered = wide - _per_channel(mean, x)
    variance = (centered * centered).mean(axes)
    inverse = torch.rsqrt(variance + eps)
    y = centered * _per_channel(inverse, x)
    if weight is not None:
        y = y * _per_channel(weight, x)
    if bias is not None:
        y = y + _per_channel(bias, x)
    return y.to(x.dtype), mean, inverse, variance


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view([1, -1] + [1] * (x.dim() - 2))


def _blend(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    return (old * (1 - momentum) + new * momentum).to(old.dtype)


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """PyTorch's rule, with nonnegative axes: torch 2.11 miscounts negative ones."""
    axes = None if dim is None else [axis % max(x.dim(), 1) for axis in dim]
    rule = decomposition_table[aten.linalg_vector_norm.default]
    norm: Tensor = rule(x, ord, axes, keepdim, dtype=dtype)
    return norm


RULES: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_no_training.default: batch_norm_inference,
    aten._native_batch_norm_legit_functional.default: batch_norm_functional,
    aten._native_batch_norm_legit.no_stats: batch_norm_without_statistics,
    aten.linalg_vector_norm.default: vector_norm,
    aten.native_layer_norm.default: layer_norm,
    aten.native_group_norm.default: group_norm,
    aten.var_mean.correction: variance_and_mean,
    aten.var.correction: variance,
    aten.std.correction: deviation,
}
