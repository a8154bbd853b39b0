"""Sums, means and scans in a wider type or in stages: the compiler adds sequentially."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules import complexes
from turbine.capture.rules.indexing import along_axis
from turbine.capture.sizes import is_static

aten = torch.ops.aten

# The compiler accumulates these in their own type, PyTorch in f32.
ADDED_WIDER = (torch.float16, torch.bfloat16)
# n sequential additions have up to n rounding errors; PyTorch sums pairwise.
_LONGEST_CHAIN = 64
# An axis without chunks of these sizes is summed in f64.
_SHORTEST_CHUNK = 8


def total(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The sum along some axes, or along all."""
    if x.is_complex():
        return complexes.total(x, dim, keepdim, dtype=dtype)
    axes = _axes(x, dim)
    if not _applies(x, axes, dtype):
        return NotImplemented
    wide = x.to(torch.float32)
    if _is_short(x, axes):
        summed = wide.sum(axes, keepdim=keepdim)
    elif _has_chunks(x, axes):
        for axis in reversed(axes):
            wide = _sum_by_chunks(wide, axis)
        summed = wide if keepdim else wide.squeeze(axes)
    else:
        summed = x.to(torch.float64).sum(axes, keepdim=keepdim)
    return summed.to(dtype or x.dtype)


def mean(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The sum divided by the number of elements."""
    axes = _axes(x, dim)
    if not _applies(x, axes, dtype):
        return NotImplemented
    summed = x.sum(axes, keepdim=keepdim, dtype=torch.float32)
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


def _applies(x: Tensor, axes: list[int], dtype: torch.dtype | None) -> bool:
    if x.dim() == 0 or not {x.dtype, dtype or x.dtype} <= {*ADDED_WIDER, torch.float32}:
        return False
    return x.dtype in ADDED_WIDER or not _is_short(x, axes)


def _axes(x: Tensor, dim: Sequence[int] | None) -> list[int]:
    return sorted(axis % (x.dim() or 1) for axis in dim or range(x.dim()))


def _is_short(x: Tensor, axes: list[int]) -> bool:
    count = math.prod(x.shape[axis] for axis in axes)
    return isinstance(count, int) and count <= _LONGEST_CHAIN


def _has_chunks(x: Tensor, axes: list[int]) -> bool:
    """Whether each axis can be summed in stages; reshapes of dynamic sizes are avoided."""
    return is_static(x) and all(_chunk(x.shape[axis]) is not None for axis in axes)


def _chunk(size: int) -> int | None:
    """The chunk size of an axis for the first stage; a short axis is one chunk."""
    if size <= _LONGEST_CHAIN:
        return size
    divisors = range(_LONGEST_CHAIN, _SHORTEST_CHUNK - 1, -1)
    return next((chunk for chunk in divisors if size % chunk == 0), None)


def _sum_by_chunks(x: Tensor, axis: int) -> Tensor:
    """The sum along one axis, with keepdim."""
    while (size := x.shape[axis]) > _LONGEST_CHAIN and (chunk := _chunk(size)) is not None:
        x = x.unflatten(axis, (size // chunk, chunk)).sum(axis + 1)
    return x.sum(axis, keepdim=True)


def _scan_wider(op: Any) -> Callable[..., Tensor]:
    """Scan in the type in which PyTorch accumulates."""

    def scan(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        result = x.dtype if dtype is None else dtype
        if x.dim() == 0:
            return aten._to_copy.default(x, dtype=result)
        if result not in _SCANNED_IN:
            return NotImplemented
        # Round to the result type first, as PyTorch does.
        scanned: Tensor = op(x.to(result).to(_SCANNED_IN[result]), dim)
        return scanned.to(result)

    return scan


_SCANNED_IN = {torch.float32: torch.float64, **dict.fromkeys(ADDED_WIDER, torch.float32)}


RULES: dict[Any, Callable[..., Any]] = {
    aten.sum.dim_IntList: total,
    aten.mean.dim: mean,
    aten.mean.default: mean_of_all,
    aten.cumsum.default: _scan_wider(aten.cumsum.default),
    aten.cumprod.default: _scan_wider(aten.cumprod.default),
    aten._softmax.default: _softmax,
    aten._log_softmax.default: log_softmax,
}
