"""Numpy arrays as IREE buffer views and back, sharing memory where IREE allows it."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char
from typing import Any

import iree.runtime as iree
import numpy
from numpy.typing import NDArray

from turbine import dtypes
from turbine.dtypes import Dtype
from turbine.runtime.overlap import Layout, Span

# IREE imports host memory in place only from addresses that are multiples of this.
ALIGNMENT = 64

# Results of a call are of the library of highest priority among its arguments.
PRIORITY = 0
Array = NDArray[Any]
NOTHING = numpy.zeros(0, numpy.uint8)

# Dtypes that numpy exports by DLPack; those of ml_dtypes are passed as bytes.
_NATIVE = {row.name for row in dtypes.TABLE if row.numpy.isbuiltin == 1}


def to_view(device: Any, array: Array, dtype: Dtype, shared: list[Span]) -> Any:
    """An array as a buffer view, or None if it cannot be one (`problem` says why).

    It is copied only if it is strided, read-only or misaligned; otherwise its span is added to
    `shared`.
    """
    if array.dtype != dtype.numpy:
        return None
    if not array.size:
        return empty_view(device, array.shape, dtype)
    flags = array.flags
    start = -1
    if flags.c_contiguous and flags.writeable:
        start = _address(array)
    if start % ALIGNMENT:
        array = plain_copy(array)
    else:
        shared.append((start, start + array.nbytes))
    if dtype.name in _NATIVE:
        return device.from_dlpack_capsule(array.__dlpack__())
    view = device.from_dlpack_capsule(_bytes(array).__dlpack__())
    return relabel(view, array.shape, dtype)


def empty_view(device: Any, shape: Sequence[int], dtype: Dtype) -> Any:
    """An empty view of memory that is not empty: on local-task IREE reads it."""
    memory = plain_copy(numpy.zeros(ALIGNMENT, numpy.uint8))
    return relabel(device.from_dlpack_capsule(memory.__dlpack__()), shape, dtype)


def from_view(device: Any, view: Any, dtype: Dtype) -> Array:
    """A result as an array that owns its buffer, with the dtype of the signature."""
    raw = view.map().asarray([view.byte_length], numpy.dtype(numpy.uint8))
    array: Array = raw.view(dtype.numpy).reshape(view.shape)
    return array


def relabel(view: Any, shape: Sequence[int], dtype: Dtype) -> Any:
    """The same buffer as a view of another type."""
    return iree.HalBufferView(view.get_buffer(), list(shape), dtype.hal)


def dtype_of(array: Array) -> Dtype:
    """The row of the dtype table for an array."""
    return dtypes.of_numpy(array.dtype)


def place_of(array: Array) -> str:
    """The device an array is on."""
    return "cpu"


def problem(array: Array, dtype: Dtype) -> str:
    """Why `to_view` returned None for an array."""
    return f"has dtype {array.dtype}, expected {dtype.numpy}"


def is_writable(array: Array) -> bool:
    """Whether `write` can overwrite the array."""
    return bool(array.flags.writeable)


def span(array: Array) -> Span:
    """The addresses a contiguous array occupies."""
    start = _address(array) if array.size else 0
    return start, start + array.nbytes


def layout(array: Array) -> Layout:
    """The layout of an array in memory."""
    start: int = array.__array_interface__["data"][0]
    return Layout(start, array.shape, array.strides, array.itemsize)


def to_numpy(array: Array) -> Array:
    """The array."""
    return array


def to_bytes(array: Array, dtype: Dtype) -> Array | None:
    """The bytes of a contiguous copy, or None for an array of another dtype."""
    return _bytes(array.copy()) if array.dtype == dtype.numpy else None


def from_bytes(raw: Array, shape: Sequence[int], dtype: Dtype) -> Array:
    """An array that owns these bytes."""
    array: Array = raw.view(dtype.numpy).reshape(shape)
    return array


def copy(array: Array) -> Array:
    """A copy of an array."""
    return array.copy()


def write(into: Array, value: Array) -> None:
    """Overwrite an array in place."""
    into[...] = value


def _address(array: Array) -> int:
    """The address of a writable array that is not empty; faster than array.ctypes.data."""
    return addressof(c_char.from_buffer(_bytes(array).data))


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(numpy.uint8)


def plain_copy(array: Array) -> Array:
    """A contiguous, aligned copy that IREE can import."""
    raw = numpy.empty(array.nbytes + ALIGNMENT, numpy.uint8)
    # In two steps: numpy does not move the start of an empty slice.
    raw = raw[-_address(raw) % ALIGNMENT :][: array.nbytes]
    aligned: Array = raw.view(array.dtype).reshape(array.shape)
    aligned[...] = array
    return aligned
