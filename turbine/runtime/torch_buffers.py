"""Torch tensors as IREE buffer views and back, sharing memory where IREE allows it.

Imported only once a torch tensor has been seen: artifacts run where torch is not installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

from turbine.dtypes import Dtype
from turbine.runtime import numpy_buffers
from turbine.runtime.numpy_buffers import ALIGNMENT

_DLPACK_CPU = 1


def to_view(device: Any, tensor: Tensor, dtype: Dtype) -> Any:
    """A CPU tensor as a buffer view; copied only when strided or badly aligned."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if tensor.data_ptr() % ALIGNMENT:
        tensor = tensor.clone()
    if dtype.dlpack:
        return device.from_dlpack_capsule(to_dlpack(tensor))
    raw = tensor.reshape(-1).view(torch.uint8).numpy()
    return numpy_buffers.import_bytes(device, raw, tuple(tensor.shape), dtype)


def from_view(device: Any, view: Any, dtype: Dtype) -> Tensor:
    """A result as a tensor that owns its buffer; the dtype is the signature's, never guessed."""
    if not dtype.dlpack:
        view = numpy_buffers.as_bytes(view)
    tensor = from_dlpack(device.create_dlpack_capsule(view, _DLPACK_CPU, 0))
    wanted = dtype.torch
    return tensor if tensor.dtype is wanted else tensor.view(wanted)


def problem(tensor: Tensor, dtype: Dtype) -> str | None:
    """Why a tensor cannot be passed, whatever its shape."""
    if tensor.dtype is not dtype.torch:
        return f"has dtype {tensor.dtype}, expected {dtype.torch}"
    if not tensor.is_cpu:
        return f"is on device {tensor.device}, expected cpu"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}, expected torch.strided"
    return None


def span(tensor: Tensor) -> tuple[int, int]:
    """The addresses a contiguous tensor occupies."""
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def copy(tensor: Tensor) -> Tensor:
    """The same values in memory of their own."""
    return tensor.clone()


def write(into: Tensor, value: Tensor) -> None:
    """Overwrite a caller's tensor in place."""
    with torch.no_grad():
        into.copy_(value)
