"""Check arguments of built-in ops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turbine import errors
from turbine.capture.sizes import hint

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require(holds: bool, op: str, fact: str, hint: str | None = None) -> None:
    """Raise unless a condition holds."""
    if not holds:
        raise errors.CustomOpError(f"{op}: {fact}", hint=hint)


def require_floats(op: str, **tensors: Tensor | None) -> None:
    """Raise unless the tensors have one floating point dtype."""
    given = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    for name, dtype in given.items():
        require(dtype in FLOATS, op, f"{name} is of {dtype}, expected one of {_names(FLOATS)}")
    listed = ", ".join(f"{name} is of {dtype}" for name, dtype in given.items())
    require(len(set(given.values())) == 1, op, f"{listed}, expected one dtype for all")


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(map(str, dtypes))


def shape(tensor: Tensor) -> str:
    """A tensor's shape, for a message."""
    return str([hint(size) for size in tensor.shape])


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in its own dtype where that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
