"""Sums, means and scans in a wider type. `staged_reductions` has long sums of f32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turbine.capture.declared_ops import KERNELS
from turbine.capture.rules import complexes
from turbine.capture.rules.indexing import along_axis
from turbine.capture.sizes import is_empty

aten = torch.ops.aten

# The compiler accumulates these in their own type, PyTorch in f32.
ADDED_WIDER = (torch.float16, torch.bfloat16)
_ADDED_IN_F32 = {*ADDED_WIDER, torch.float32}


def total(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The sum along some axes, or along all."""
    if x.is_complex():
        return complexes.total(x, dim, keepdim, dtype=dtype)
    types = _types(x, dtype)
    if x.dim() == 0 or not types <= _ADDED_IN_F32 or types == {torch.float32}:
        return NotImplemented
    return x.to(torch.float32).sum(dim, keepdim=keepdim).to(dtype or x.dtype)


def mean(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The sum divided by the number of elements."""
    if x.dim() == 0 or not _types(x, dtype) <= _ADDED_IN_F32:
        return NotImplemented
    axes = dim or range(x.dim())
    summed = x.sum([*axes], keepdim=keepdim, dtype=torch.float32)
    return (summed / math.prod(x.shape[axis] for axis in axes)).to(dtype or x.dtype)


def mean_of_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    """The mean of every element."""
    return mean(x, dtype=dtype)


# For tensors of rank 0, IREE 3.13 does not terminate.
_softmax = along_axis(aten._softmax.default)
_log_softmax = along_axis(aten._log_softmax.default)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """log_softmax, of narrow types in f32."""
    if x.dtype not in ADDED_WIDER:
        return _log_softmax(x, dim, half_to_float)
    wide = torch.log_softmax(x.to(torch.float32), dim)
    return wide if half_to_float else wide.to(x.dtype)


def _types(x: Tensor, dtype: torch.dtype | None) -> set[torch.dtype]:
    """The types of the elements and of the result."""
    return {x.dtype, dtype or x.dtype}


def _accumulate(op: Any, name: str) -> Callable[..., Tensor]:
    """Scan in the type in which PyTorch accumulates, by a kernel unless rows are short."""

    def accumulate(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        result = _accumulation_dtype(x) if dtype is None else dtype
        if x.dim() == 0:
            return aten._to_copy.default(x, dtype=result)
        size = x.shape[dim]
        is_short = isinstance(size, int) and size < _SHORTEST_SCAN
        by_kernel = (
            "accumulate" in KERNELS and not is_short and not is_empty(x) and result in _SCANNED_IN
        )
        if not by_kernel and result not in _ROUNDED:
            return NotImplemented
        # Round to the result type first, as PyTorch does.
        given = x.to(result)
        if by_kernel:
            return KERNELS["accumulate"](name, given, dim, _SCANNED_IN[result])
        scanned: Tensor = op(given.to(_SCANNED_IN[result]), dim)
        return scanned.to(result)

    return accumulate


def _accumulation_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() or x.is_complex() else torch.int64


# A shorter row does not pay for a program.
_SHORTEST_SCAN = 16
_ROUNDED = {torch.float32, *ADDED_WIDER}
_SCANNED_IN = {
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    **dict.fromkeys(ADDED_WIDER, torch.float32),
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.int64),
}


RULES: dict[Any, Callable[..., Any]] = {
    aten.sum.dim_IntList: total,
    aten.mean.dim: mean,
    aten.mean.default: mean_of_all,
    aten.cumsum.default: _accumulate(aten.cumsum.default, "cumsum"),
    aten.cumprod.default: _accumulate(aten.cumprod.default, "cumprod"),
    aten._softmax.default: _softmax,
    aten._log_softmax.default: log_softmax,
}
