"""The elements of an archive's entry in the dtype that a program declares."""

from __future__ import annotations

from typing import Any

import numpy

from turbine import dtypes, errors
from turbine.runtime import gguf_file
from turbine.runtime.entries import Entry


def convert(entry: Entry, dtype: str) -> memoryview:
    """The elements as a dtype; not copied if it is their own, or if they have none."""
    if entry.dtype == dtype or (entry.dtype is None and entry.blocks is None):
        return entry.data
    numbers = _numbers(entry)
    with numpy.errstate(over="ignore"):
        result = numpy.ascontiguousarray(numbers.astype(dtypes.from_torch_name(dtype).numpy))
    if numpy.isinf(result).sum() > numpy.isinf(numbers).sum():
        raise errors.ParameterError(
            f"{entry.key} ({entry.text}) has numbers too large for {dtype}",
            hint="export the model with this weight in float32",
        )
    return result.reshape(-1).view(numpy.uint8).data


def _numbers(entry: Entry) -> numpy.ndarray[Any, Any]:
    if entry.dtype is None:
        return gguf_file.decode(entry)
    return numpy.frombuffer(entry.data, dtypes.from_torch_name(entry.dtype).numpy)
