"""CUDA tensors as buffer views and back, without copies of arguments.

Imported only once a CUDA tensor has been seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _to_dlpack as to_dlpack

from turbine.dtypes import Dtype
from turbine.runtime import gpu_buffers, numpy_buffers, torch_buffers
from turbine.runtime.overlap import Span
from turbine.runtime.torch_buffers import (
    copy,
    dtype_of,
    is_writable,
    layout,
    place_of,
    plain_copy,
    span,
    to_numpy,
    write,
)

__all__ = ["copy", "dtype_of", "is_writable", "layout", "place_of", "span", "to_numpy", "write"]
# Results of a call are of the library of highest priority among its arguments.
PRIORITY = 2
# Code reads and writes up to so many bytes at once.
_ALIGNMENT = 16
# The device of programs: the first one that the process sees.
_DEVICE = torch.device("cuda", 0)


def to_view(device: Any, tensor: Tensor, dtype: Dtype, shared: list[Span]) -> Any:
    """A CUDA tensor as a buffer view, or None if it cannot be one (`problem` says why).

    It is copied only if it is strided or misaligned; otherwise its span is added to `shared`.
    """
    try:
        if tensor.dtype is not dtype.torch or tensor.device != _DEVICE:
            return None
        if not tensor.numel():
            return gpu_buffers.upload(device, numpy_buffers.NOTHING, tensor.shape, dtype)
        lazy = tensor.is_neg() or (dtype.kind == "complex" and tensor.is_conj())
        if lazy or tensor.data_ptr() % _ALIGNMENT or not tensor.is_contiguous():
            tensor = plain_copy(tensor)
        else:
            shared.append(span(tensor))
        return _import(device, tensor, dtype)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        # Sparse and nested tensors, and tensors in a functorch transform, have no plain memory.
        return None


def from_view(device: Any, view: Any, dtype: Dtype) -> Tensor:
    """A result as a CUDA tensor: a copy, since IREE's pools cannot share memory with PyTorch."""
    tensor = _empty(device, view.shape, dtype)
    if tensor.numel():
        into = _import(device, tensor, dtype)
        gpu_buffers.copy_buffer(device, view.get_buffer(), into.get_buffer())
    return tensor


def _empty(device: Any, shape: Sequence[int], dtype: Dtype) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype.torch, device=_DEVICE)
    except torch.OutOfMemoryError:
        device.allocator.trim()  # which keeps what programs have freed
        return torch.empty(shape, dtype=dtype.torch, device=_DEVICE)


def problem(tensor: Tensor, dtype: Dtype) -> str:
    """Why `to_view` returned None for a tensor."""
    if tensor.dtype is dtype.torch and tensor.device != _DEVICE:
        return f"is on device {tensor.device}, expected {_DEVICE}"
    return torch_buffers.problem(tensor, dtype)


def remedy(tensor: Tensor, dtype: Dtype) -> str | None:
    """A hint for a tensor that `to_view` rejects."""
    if tensor.dtype is dtype.torch and tensor.device != _DEVICE:
        return f'pass x.to("{_DEVICE}")'
    return torch_buffers.remedy(tensor, dtype)


def wait() -> None:
    """Wait until tensors have the values that PyTorch's current stream computes."""
    torch.cuda.current_stream(_DEVICE).synchronize()


def _import(device: Any, tensor: Tensor, dtype: Dtype) -> Any:
    if dtype.dlpack:
        return device.from_dlpack_capsule(to_dlpack(tensor))
    raw = tensor.reshape(-1).view(torch.uint8)
    return numpy_buffers.relabel(device.from_dlpack_capsule(to_dlpack(raw)), tensor.shape, dtype)
