"""Tensors and arrays as buffer views on a GPU, and back.

CUDA tensors share their memory with the program, and its results are CUDA tensors then. Others are
copied to the GPU, and results back. `libraries` has the same functions for programs on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import iree.runtime as iree
import numpy

from turbine import dtypes, errors
from turbine.dtypes import Dtype
from turbine.runtime import libraries, numpy_buffers
from turbine.runtime.device import memory_hint
from turbine.runtime.overlap import Span

# A tensor's type does not say where it is, so each tensor is asked.
BY_TYPE: Mapping[type, Any] = {}
_BYTES = dtypes.from_torch_name("uint8")
_ON_DEVICE, _ANY_USE = int(iree.MemoryType.DEVICE_LOCAL), int(iree.BufferUsage.DEFAULT)


def of(value: Any) -> Any:
    """The library for a tensor or an array, None for other values."""
    host = libraries.of(value)
    if host is None or host is numpy_buffers or not value.is_cuda:
        return host and _copying(host)
    return _cuda_tensors()


def default() -> Any:
    """The library for results of a call without tensors."""
    return _copying(libraries.default())


@dataclass(frozen=True)
class Copying:
    """Passes arrays and tensors in the memory of the CPU: copies of them."""

    host: ModuleType

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    def to_view(self, device: Any, value: Any, dtype: Dtype, shared: list[Span]) -> Any:
        """A copy on the GPU, or None if there can be none (`problem` says why)."""
        raw = self.host.to_bytes(value, dtype)
        return None if raw is None else upload(device, raw, value.shape, dtype)

    def from_view(self, device: Any, view: Any, dtype: Dtype) -> Any:
        """A result, copied from the GPU."""
        raw = numpy_buffers.NOTHING
        if view.byte_length:
            held = numpy_buffers.relabel(view, [view.byte_length], _BYTES)
            raw = iree.DeviceArray(device, held).to_host()
        return self.host.from_bytes(raw, view.shape, dtype)

    def wait(self) -> None:
        """Wait until arguments have their values: they have."""


def upload(device: Any, raw: Any, shape: Any, dtype: Dtype) -> Any:
    """A copy of bytes on the GPU; of something, if there are none."""
    filled = raw if raw.size else numpy.zeros(1, numpy.uint8)
    try:
        buffer = device.allocator.allocate_buffer_copy(_ON_DEVICE, _ANY_USE, device, filled)
    except (RuntimeError, ValueError) as error:
        raise errors.RunError(
            f"a tensor of {filled.nbytes} bytes cannot be copied to the GPU: {error}",
            hint=memory_hint(error),
        ) from error
    return iree.HalBufferView(buffer, list(shape), dtype.hal)


def copy_buffer(device: Any, source: Any, into: Any) -> None:
    """Copy from one buffer to another, and wait for it."""
    semaphore = device.create_semaphore(0)
    done = iree.HalFence.create_at(semaphore, 1)
    device.queue_copy(source, into, iree.HalFence.create_at(semaphore, 0), done)
    done.wait()


@cache
def _copying(host: ModuleType) -> Copying:
    return Copying(host)


@cache
def _cuda_tensors() -> Any:
    from turbine.runtime import cuda_tensors

    return cuda_tensors
