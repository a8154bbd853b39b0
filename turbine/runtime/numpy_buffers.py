"""Numpy arrays as IREE buffer views and back, sharing memory where IREE allows it."""

from __future__ import annotations

from typing import Any

import iree.runtime as iree
import numpy
from numpy.typing import NDArray

from turbine import dtypes
from turbine.dtypes import Dtype

# IREE imports host memory in place only from addresses that are multiples of this.
ALIGNMENT = 64

Array = NDArray[Any]
_MEMORY = int(iree.MemoryType.HOST_LOCAL | iree.MemoryType.DEVICE_VISIBLE)
_USAGE = int(iree.BufferUsage.DEFAULT | iree.BufferUsage.MAPPING)
_UINT8 = dtypes.named("uint8")


def to_view(device: Any, array: Array, dtype: Dtype) -> Any:
    """An array as a buffer view; copied only when strided, read-only or badly aligned."""
    shape = array.shape
    if not array.flags.c_contiguous or not array.flags.writeable or array.ctypes.data % ALIGNMENT:
        array = _aligned_copy(array)
    return import_bytes(device, array.reshape(-1).view(numpy.uint8), shape, dtype)


def from_view(device: Any, view: Any, dtype: Dtype) -> Array:
    """A result as an array that owns its buffer."""
    raw = view.map().asarray([view.byte_length], numpy.dtype(numpy.uint8))
    array: Array = raw.view(dtype.numpy).reshape(view.shape)
    return array


def import_bytes(device: Any, raw: Array, shape: tuple[int, ...], dtype: Dtype) -> Any:
    """Host bytes as a buffer view of a given type."""
    buffer = device.allocator.import_host_allocation(raw, _MEMORY, _USAGE)
    return iree.HalBufferView(buffer, list(shape), dtype.hal)


def as_bytes(view: Any) -> Any:
    """The same buffer seen as uint8, for element types of one byte."""
    return iree.HalBufferView(view.get_buffer(), view.shape, _UINT8.hal)


def problem(array: Array, dtype: Dtype) -> str | None:
    """Why an array cannot be passed, whatever its shape."""
    if array.dtype != dtype.numpy:
        return f"has dtype {array.dtype}, expected {dtype.numpy}"
    return None


def span(array: Array) -> tuple[int, int]:
    """The addresses a contiguous array occupies."""
    return array.ctypes.data, array.ctypes.data + array.nbytes


def copy(array: Array) -> Array:
    """The same values in memory of their own."""
    return array.copy()


def write(into: Array, value: Array) -> None:
    """Overwrite a caller's array in place."""
    into[...] = value


def _aligned_copy(array: Array) -> Array:
    raw = numpy.empty(array.nbytes + ALIGNMENT, numpy.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    aligned = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    aligned[...] = array
    return aligned
