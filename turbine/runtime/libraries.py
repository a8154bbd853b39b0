"""Find the library of a tensor: a value in, the module that passes it to IREE out."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy

from turbine.runtime import numpy_buffers

# Modules by the type of a value; types of torch are added when a tensor is first seen.
BY_TYPE: dict[type, ModuleType] = {numpy.ndarray: numpy_buffers}


def of(value: Any) -> ModuleType | None:
    """The module for a tensor or an array, None for other values."""
    known = BY_TYPE.get(type(value))
    if known is not None:
        return known
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        BY_TYPE[type(value)] = _torch_buffers()
    elif isinstance(value, numpy.ndarray):
        BY_TYPE[type(value)] = numpy_buffers
    return BY_TYPE.get(type(value))


def default() -> ModuleType:
    """The module for results of a call without tensors."""
    return numpy_buffers if sys.modules.get("torch") is None else _torch_buffers()


def _torch_buffers() -> ModuleType:
    from turbine.runtime import torch_buffers

    return torch_buffers
