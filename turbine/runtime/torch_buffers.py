"""Torch tensors as IREE buffer views and back, sharing memory where IREE allows it.

Imported only once a torch tensor has been seen: artifacts run where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# The functions behind torch.utils.dlpack, without its checks of types.
from torch._C import _from_dlpack as from_dlpack
from torch._C import _to_dlpack as to_dlpack

from turbine.dtypes import TABLE, Dtype, from_torch_name, of_torch
from turbine.runtime import numpy_buffers
from turbine.runtime.numpy_buffers import ALIGNMENT
from turbine.runtime.overlap import Layout, Span

# Results of a call are of the library of highest priority among its arguments.
PRIORITY = 1
_DLPACK_CPU = 1
_UINT8 = from_torch_name("uint8")
_DTYPES = {row.name: row.torch for row in TABLE}


def to_view(device: Any, tensor: Tensor, dtype: Dtype, shared: list[Span]) -> Any:
    """A CPU tensor as a buffer view, or None if it cannot be one (`problem` says why).

    It is copied only if it is strided or misaligned; otherwise its span is added to `shared`.
    """
    try:
        if tensor.dtype is not _DTYPES[dtype.name] or not tensor.is_cpu:
            return None
        start, size = tensor.data_ptr(), tensor.nbytes
        if not size:
            return numpy_buffers.empty_view(device, tensor.shape, dtype)
        if not start:
            return None
        lazy = tensor.is_neg() or (dtype.kind == "complex" and tensor.is_conj())
        if lazy or start % ALIGNMENT or not tensor.is_contiguous():
            tensor = plain_copy(tensor)
        else:
            shared.append((start, start + size))
        if dtype.dlpack:
            return device.from_dlpack_capsule(to_dlpack(tensor))
        raw = tensor.reshape(-1).view(torch.uint8)
        view = device.from_dlpack_capsule(to_dlpack(raw))
        return numpy_buffers.relabel(view, tensor.shape, dtype)
    except RuntimeError:
        # Sparse and nested tensors, and tensors in a functorch transform, have no plain memory.
        return None


def from_view(device: Any, view: Any, dtype: Dtype) -> Tensor:
    """A result as a tensor that owns its buffer, with the dtype of the signature."""
    if not dtype.dlpack:
        view = numpy_buffers.relabel(view, view.shape, _UINT8)
    tensor = from_dlpack(device.create_dlpack_capsule(view, _DLPACK_CPU, 0))
    wanted = _DTYPES[dtype.name]
    return tensor if tensor.dtype is wanted else tensor.view(wanted)


def dtype_of(tensor: Tensor) -> Dtype:
    """The row of the dtype table for a tensor."""
    return of_torch(tensor.dtype)


def place_of(tensor: Tensor) -> torch.device:
    """The device a tensor is on."""
    return tensor.device


def problem(tensor: Tensor, dtype: Dtype) -> str:
    """Why `to_view` returned None for a tensor."""
    if tensor.dtype is not dtype.torch:
        return f"has dtype {tensor.dtype}, expected {dtype.torch}"
    if not tensor.is_cpu:
        return f"is on device {tensor.device}, expected cpu"
    if tensor.is_nested:
        return "is a nested tensor, expected a strided one"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}, expected torch.strided"
    return "has no memory: its storage was freed, or it stands for a tensor inside a transform"


def remedy(tensor: Tensor, dtype: Dtype) -> str | None:
    """A hint for a tensor that `to_view` rejects."""
    if tensor.dtype is not dtype.torch:
        return f"pass x.to({dtype.torch})"
    if not tensor.is_cpu:
        return "pass x.cpu()"
    if tensor.is_nested:
        return "pass x.to_padded_tensor(0)"
    return None if tensor.layout is torch.strided else "pass x.to_dense()"


def is_writable(tensor: Tensor) -> bool:
    """Whether `write` can overwrite the tensor: none of its elements share memory."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    overlaps = any(size > 1 and not step for size, step in steps)
    return not overlaps or not tensor.numel()


def span(tensor: Tensor) -> Span:
    """The addresses a contiguous tensor occupies."""
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def layout(tensor: Tensor) -> Layout:
    """The layout of a tensor in memory."""
    size = tensor.element_size()
    strides = tuple(step * size for step in tensor.stride())
    return Layout(tensor.data_ptr(), tuple(tensor.shape), strides, size)


def to_numpy(tensor: Tensor) -> Any:
    """The values as an array of the numpy dtype in the table."""
    raw = plain_copy(tensor.cpu()).reshape(-1).view(torch.uint8).numpy()
    return raw.view(of_torch(tensor.dtype).numpy).reshape(tensor.shape)


def to_bytes(tensor: Tensor, dtype: Dtype) -> Any:
    """The bytes of a CPU tensor as an array, or None if it has none (`problem` says why)."""
    try:
        if tensor.dtype is not _DTYPES[dtype.name] or not tensor.is_cpu:
            return None
        return plain_copy(tensor).reshape(-1).view(torch.uint8).numpy()
    except RuntimeError:
        return None


def from_bytes(raw: Any, shape: Sequence[int], dtype: Dtype) -> Tensor:
    """A tensor that owns these bytes."""
    return torch.from_numpy(raw).view(dtype.torch).reshape(shape)


def copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor."""
    return tensor.clone()


def write(into: Tensor, value: Tensor) -> None:
    """Overwrite a tensor in place."""
    with torch.no_grad():
        into.copy_(value)


def wait() -> None:
    """Wait until tensors have their values: on the CPU they have."""


def plain_copy(tensor: Tensor) -> Tensor:
    """A contiguous, aligned copy that IREE can import."""
    resolved = tensor.detach().resolve_conj().resolve_neg()
    return resolved.clone(memory_format=torch.contiguous_format)
