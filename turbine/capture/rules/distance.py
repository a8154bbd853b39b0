"""Distances: hypot, and between all rows of two tensors or of one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """The length of (a, b); f64 is scaled so that squares do not overflow."""
    dtype = torch.result_type(a, b)
    wide = [side.to(torch.float64).abs() for side in torch.broadcast_tensors(a, b)]
    long, short = torch.maximum(*wide), torch.minimum(*wide)
    if dtype == torch.float64:
        ratio = torch.where(long == 0.0, 0.0, short / long)
        length = long * torch.sqrt(1.0 + ratio * ratio)
    else:
        length = torch.sqrt(long * long + short * short)
    endless = (wide[0] == inf) | (wide[1] == inf)
    return torch.where(endless, inf, length).to(dtype)


def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """The p-norm of the difference of every pair of rows, one from each tensor."""
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def cdist_backward(gradient: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of the first tensor; the caller swaps the two for the second."""
    slope = _slope(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, distances.unsqueeze(-1))
    return (gradient.unsqueeze(-1) * slope).sum(-2)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of the difference of every two rows."""
    first, second = _pairs(x)
    return _norm(x[first] - x[second], p)


def pdist_backward(gradient: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of rows: opposite for the two rows of a pair."""
    first, second = _pairs(x)
    slope = _slope(x[first] - x[second], p, distances.unsqueeze(-1)) * gradient.unsqueeze(-1)
    pulled = torch.zeros_like(x).index_put((first,), slope, True)
    return pulled.index_put((second,), -slope, True)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    count = x.shape[0]
    pairs = torch.triu_indices(count, count, 1, device=x.device)
    return pairs[0], pairs[1]


def _norm(difference: Tensor, p: float) -> Tensor:
    size = difference.abs()
    if p == 0:
        return (size != 0).sum(-1).to(size.dtype)
    if p == 1:
        return size.sum(-1)
    if p == inf:
        return size.amax(-1)
    return torch.sqrt((size * size).sum(-1)) if p == 2 else (size**p).sum(-1) ** (1 / p)


def _slope(difference: Tensor, p: float, distance: Tensor) -> Tensor:
    """The derivative of a distance by each coordinate; zero where points coincide."""
    sign = torch.sign(difference)
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return sign
    if p == inf:
        return sign * (difference.abs() == distance)
    ratio = torch.where(distance == 0.0, 0.0, difference.abs() / distance)
    if p == 2:
        return sign * ratio
    return torch.where(ratio == 0.0, 0.0, sign * ratio ** (p - 1))


RULES: dict[Any, Callable[..., Any]] = {
    aten.hypot.default: hypot,
    aten._cdist_forward.default: cdist,
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_forward.default: pdist,
    aten._pdist_backward.default: pdist_backward,
}
