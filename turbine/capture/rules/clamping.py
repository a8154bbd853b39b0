"""Minimum, maximum and clamp that propagate nan, as in PyTorch; the compiler's do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Bound = Tensor | float | None


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger; nan if either is nan, since comparisons with nan are false."""
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return NotImplemented
    a, b = a.to(dtype), b.to(dtype)
    return torch.where((a >= b) | (a != a), a, b)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; nan if either is nan."""
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return NotImplemented
    a, b = a.to(dtype), b.to(dtype)
    return torch.where((a <= b) | (a != a), a, b)


def fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger; the other one where one is nan."""
    return _of_numbers(a, b, torch.ge)


def fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; the other one where one is nan."""
    return _of_numbers(a, b, torch.le)


def _of_numbers(a: Tensor, b: Tensor, compare: Callable[..., Tensor]) -> Tensor:
    dtype = torch.result_type(a, b)
    a, b = torch.broadcast_tensors(a.to(dtype), b.to(dtype))
    return torch.where(compare(a, b) | (b != b), a, b)


def clamp(x: Tensor, min: Bound = None, max: Bound = None) -> Tensor:
    """Bound from below, then from above."""
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = x.dtype
    for bound in bounds:
        dtype = torch.result_type(torch.empty((), dtype=dtype), bound)
    value = x.to(dtype)
    if min is not None:
        value = torch.maximum(value, _like(min, value))
    return value if max is None else torch.minimum(value, _like(max, value))


def clamp_min(x: Tensor, min: Bound) -> Tensor:
    """Bound from below."""
    return clamp(x, min, None)


def clamp_max(x: Tensor, max: Bound) -> Tensor:
    """Bound from above."""
    return clamp(x, None, max)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """A clamp."""
    return clamp(x, min_val, max_val)


def _like(bound: Tensor | float, value: Tensor) -> Tensor:
    if isinstance(bound, Tensor):
        return bound.to(value.dtype)
    return torch.full((), bound, dtype=value.dtype, device=value.device)


def _compare_with_number(op: Any) -> Callable[..., Any]:
    """A comparison with a number that is out of range for the element type.

    PyTorch compares bools as numbers, and wraps an integer to the element type.
    """

    def compare(x: Tensor, other: float) -> Tensor:
        if isinstance(other, bool | torch.SymInt | torch.SymFloat) or x.is_complex():
            return NotImplemented
        if x.dtype == torch.bool:
            return op(x.to(torch.float32 if isinstance(other, float) else torch.int64), other)
        if x.dtype.is_floating_point or isinstance(other, float):
            return NotImplemented
        wrapped = _wrap(other, x.dtype)
        return op(x, wrapped) if wrapped != other else NotImplemented

    return compare


def _wrap(number: int, dtype: torch.dtype) -> int:
    """The integer wrapped to the range of a dtype."""
    limits = torch.iinfo(dtype)
    return (number - limits.min) % (limits.max - limits.min + 1) + limits.min


_COMPARISONS = (
    aten.eq.Scalar,
    aten.ne.Scalar,
    aten.lt.Scalar,
    aten.le.Scalar,
    aten.gt.Scalar,
    aten.ge.Scalar,
)

RULES: dict[Any, Callable[..., Any]] = {
    **{op: _compare_with_number(op) for op in _COMPARISONS},
    aten.maximum.default: maximum,
    aten.minimum.default: minimum,
    aten.fmax.default: fmax,
    aten.fmin.default: fmin,
    aten.clamp.default: clamp,
    aten.clamp.Tensor: clamp,
    aten.clamp_min.default: clamp_min,
    aten.clamp_min.Tensor: clamp_min,
    aten.clamp_max.default: clamp_max,
    aten.clamp_max.Tensor: clamp_max,
    aten.hardtanh.default: hardtanh,
}
