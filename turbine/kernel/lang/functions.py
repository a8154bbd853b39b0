"""Elementwise functions of one operand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turbine.kernel.lang.elementwise import FLOATS, apply, pointwise
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.trace.op import Op, Operand, op
from turbine.kernel.trace.tracer import OPERATORS


@pointwise(FLOATS)
def exp(x: Tensor) -> Tensor:
    """Exponential, elementwise.

    Integers are converted to f32.

    Example::

        tkl.exp(tkl.arange(3))  # [1 2.71828 7.38906]
    """
    return torch.exp(x)


@pointwise(FLOATS)
def exp2(x: Tensor) -> Tensor:
    """2 raised to the power x, elementwise.

    Integers are converted to f32.

    Example::

        tkl.exp2(tkl.arange(4))  # [1 2 4 8]
    """
    return torch.exp2(x)


@pointwise(FLOATS)
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, elementwise, accurate near zero.

    Integers are converted to f32.

    Example::

        tkl.expm1(tkl.arange(3))  # [0 1.71828 6.38906]
    """
    return torch.expm1(x)


@pointwise(FLOATS)
def log(x: Tensor) -> Tensor:
    """Natural logarithm, elementwise; nan for negative numbers, -inf for 0.

    Integers are converted to f32.

    Example::

        tkl.log(tkl.arange(1, 4))  # [0 0.693147 1.09861]
    """
    return torch.log(x)


@pointwise(FLOATS)
def log2(x: Tensor) -> Tensor:
    """Base-2 logarithm, elementwise; nan for negative numbers, -inf for 0.

    Integers are converted to f32.

    Example::

        tkl.log2(tkl.arange(1, 5))  # [0 1 1.58496 2]
    """
    return torch.log2(x)


@pointwise(FLOATS)
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), elementwise, accurate near zero; nan below -1, -inf for -1.

    Integers are converted to f32.

    Example::

        tkl.log1p(tkl.arange(3))  # [0 0.693147 1.09861]
    """
    return torch.log1p(x)


@pointwise(FLOATS)
def sqrt(x: Tensor) -> Tensor:
    """Square root, elementwise; nan for negative numbers.

    Integers are converted to f32.

    Example::

        tkl.sqrt(tkl.arange(4))  # [0 1 1.41421 1.73205]
    """
    return torch.sqrt(x)


@pointwise(FLOATS)
def rsqrt(x: Tensor) -> Tensor:
    """Reciprocal square root, elementwise; nan for negative numbers, inf for 0.

    Integers are converted to f32.

    Example::

        tkl.rsqrt(tkl.arange(1, 5))  # [1 0.707107 0.57735 0.5]
    """
    return torch.rsqrt(x)


@pointwise(FLOATS)
def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent, elementwise.

    Integers are converted to f32.

    Example::

        tkl.tanh(tkl.arange(3))  # [0 0.761594 0.964028]
    """
    return torch.tanh(x)


@pointwise(FLOATS)
def sin(x: Tensor) -> Tensor:
    """Sine of x in radians, elementwise.

    Integers are converted to f32.

    Example::

        tkl.sin(tkl.arange(3))  # [0 0.841471 0.909297]
    """
    return torch.sin(x)


@pointwise(FLOATS)
def cos(x: Tensor) -> Tensor:
    """Cosine of x in radians, elementwise.

    Integers are converted to f32.

    Example::

        tkl.cos(tkl.arange(3))  # [1 0.540302 -0.416147]
    """
    return torch.cos(x)


@pointwise(FLOATS)
def erf(x: Tensor) -> Tensor:
    """Error function, elementwise.

    Integers are converted to f32.

    Example::

        tkl.erf(tkl.arange(3))  # [0 0.842701 0.995322]
    """
    return torch.erf(x)


@pointwise(FLOATS)
def sigmoid(x: Tensor) -> Tensor:
    """Logistic sigmoid, elementwise: `1 / (1 + exp(-x))`.

    Integers are converted to f32.

    Example::

        tkl.sigmoid(tkl.arange(3))  # [0.5 0.731059 0.880797]
    """
    return torch.sigmoid(x)


def _round(op: Op, x: Operand) -> Any:
    tile = as_tile(x, None, op.name)
    return tile if tile.dtype.kind in ("int", "uint") else apply(op, [tile], FLOATS, None)


@op(_round)
def floor(x: Tensor) -> Tensor:
    """x rounded toward negative infinity, elementwise.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.floor(tkl.arange(-3, 3) / 2)  # [-2 -1 -1 0 0 1]
    """
    return torch.floor(x)


@op(_round)
def ceil(x: Tensor) -> Tensor:
    """x rounded toward infinity, elementwise.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.ceil(tkl.arange(4) / 2)  # [0 1 1 2]
    """
    return torch.ceil(x)


@op(_round)
def round(x: Tensor) -> Tensor:
    """x rounded to the nearest integer, elementwise; halves go to the even one.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.round(tkl.arange(6) / 2)  # [0 0 1 2 2 2]
    """
    return torch.round(x)


@op(_round)
def trunc(x: Tensor) -> Tensor:
    """x rounded toward zero, elementwise.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.trunc(tkl.arange(4) * 0.7)  # [0 0 1 2]
    """
    return torch.trunc(x)


OPERATORS["round"] = round
