"""Functions of one number, element by element; integers become f32, or are whole already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turbine.kernel.op import FLOATS, Op, Operand, apply, as_tile, op, pointwise
from turbine.kernel.tracer import OPERATORS


@pointwise(FLOATS)
def exp(x: Tensor) -> Tensor:
    """e to the power of x."""
    return torch.exp(x)


@pointwise(FLOATS)
def exp2(x: Tensor) -> Tensor:
    """2 to the power of x."""
    return torch.exp2(x)


@pointwise(FLOATS)
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, exact near zero."""
    return torch.expm1(x)


@pointwise(FLOATS)
def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return torch.log(x)


@pointwise(FLOATS)
def log2(x: Tensor) -> Tensor:
    """The logarithm to base 2."""
    return torch.log2(x)


@pointwise(FLOATS)
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact near zero."""
    return torch.log1p(x)


@pointwise(FLOATS)
def sqrt(x: Tensor) -> Tensor:
    """The square root."""
    return torch.sqrt(x)


@pointwise(FLOATS)
def rsqrt(x: Tensor) -> Tensor:
    """One over the square root."""
    return torch.rsqrt(x)


@pointwise(FLOATS)
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return torch.tanh(x)


@pointwise(FLOATS)
def sin(x: Tensor) -> Tensor:
    """The sine."""
    return torch.sin(x)


@pointwise(FLOATS)
def cos(x: Tensor) -> Tensor:
    """The cosine."""
    return torch.cos(x)


@pointwise(FLOATS)
def erf(x: Tensor) -> Tensor:
    """The error function."""
    return torch.erf(x)


@pointwise(FLOATS)
def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + exp(-x))`."""
    return torch.sigmoid(x)


def _to_whole(made: Op, x: Operand) -> Any:
    tile = as_tile(x, None, made.name)
    return tile if tile.dtype.kind in ("int", "uint") else apply(made, [tile], FLOATS, None)


@op(_to_whole)
def floor(x: Tensor) -> Tensor:
    """The next integer below, as a float."""
    return torch.floor(x)


@op(_to_whole)
def ceil(x: Tensor) -> Tensor:
    """The next integer above, as a float."""
    return torch.ceil(x)


@op(_to_whole)
def round(x: Tensor) -> Tensor:
    """The nearest integer, as a float; of two, the even one."""
    return torch.round(x)


@op(_to_whole)
def trunc(x: Tensor) -> Tensor:
    """The integer part, as a float."""
    return torch.trunc(x)


OPERATORS["round"] = round
