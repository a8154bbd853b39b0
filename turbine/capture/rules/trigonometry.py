"""Sine and its relatives, right for large arguments and for f64.

IREE 3.13 reduces large arguments poorly in f32 (cos(300) is off in the fourth digit) and has no
f64 code at all, so all of these are computed in f64 from polynomials of our own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.polynomial import ATAN, COS_SERIES, SIN_SERIES, polynomial
from turbine.capture.rules.widening import in_double, rounded_to

aten = torch.ops.aten

# pi/2 in three parts: products of the first two with quadrant numbers are exact in f64.
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)


def sin(x: Tensor) -> Tensor:
    """Sine by quadrant."""
    return _by_quadrant(x, 0)


def cos(x: Tensor) -> Tensor:
    """Cosine: a sine one quadrant on."""
    return _by_quadrant(x, 1)


def tan(x: Tensor) -> Tensor:
    """Tangent, rounded once."""
    if x.is_complex():
        return NotImplemented
    wide = x.to(torch.float64)
    return (torch.sin(wide) / torch.cos(wide)).to(rounded_to(x))


@in_double
def atan(x: Tensor) -> Tensor:
    """Arc tangent: three ranges of |x| are brought to [0, tan(pi/8)]."""
    size = x.abs()
    large, middle = size > 2.414213562373095, size > 0.41421356237309503
    turned = torch.where(middle, (size - 1.0) / (size + 1.0), size)
    reduced = torch.where(large, -1.0 / size, turned)
    # Quarter turns added back: 0, 1 or 2 times pi/4, without rounding through f32 constants.
    base = (large.to(x.dtype) + middle.to(x.dtype)) * (pi / 4)
    angle = base + reduced * polynomial(reduced * reduced, ATAN)
    return torch.where(x < 0, -angle, angle)


@in_double
def asin(x: Tensor) -> Tensor:
    """Arc sine, from the arc tangent."""
    return torch.atan(x / torch.sqrt((1.0 - x) * (1.0 + x)))


@in_double
def acos(x: Tensor) -> Tensor:
    """Arc cosine, from the arc tangent of the half angle."""
    return 2.0 * torch.atan(torch.sqrt((1.0 - x) / (1.0 + x)))


def _by_quadrant(x: Tensor, shift: int) -> Tensor:
    if x.is_complex():
        return NotImplemented
    # Narrow results need fewer terms; each term costs two ops in every graph with a sine.
    terms = 9 if x.dtype == torch.float64 else 6
    wide = x.to(torch.float64)
    turns = torch.round(wide * (2 / pi))
    near = ((wide - turns * _HALF_PI[0]) - turns * _HALF_PI[1]) - turns * _HALF_PI[2]
    square = near * near
    sine = near * polynomial(square, SIN_SERIES[-terms:])
    cosine = polynomial(square, COS_SERIES[-terms - 1 :])
    quadrant = turns + float(shift)
    quadrant = quadrant - 4.0 * torch.floor(quadrant * 0.25)
    odd = (quadrant == 1.0) | (quadrant == 3.0)
    value = torch.where(odd, cosine, sine)
    return torch.where(quadrant >= 2.0, -value, value).to(rounded_to(x))


RULES: dict[Any, Callable[..., Any]] = {
    aten.sin.default: sin,
    aten.cos.default: cos,
    aten.tan.default: tan,
    aten.atan.default: atan,
    aten.asin.default: asin,
    aten.acos.default: acos,
}
