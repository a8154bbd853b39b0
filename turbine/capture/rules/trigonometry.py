"""Sine and its relatives, right for large arguments and for f64.

IREE 3.13 reduces large arguments poorly in f32 (cos(300) is wrong in the fourth digit) and has no
f64 code. Sines and cosines of f32 are formulas of `mlir/vector_math.py`; the rest is computed in
f64 by our own polynomials, with large arguments reduced by the method of Payne and Hanek.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.polynomial import polynomial
from turbine.capture.rules.widening import halves, in_double, promote_dtypes, result_dtype
from turbine.fits import ATAN, COS_SERIES, SIN_SERIES

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
    sine, cosine, quadrant = _in_quadrant(x.to(result_dtype(x)))
    odd = _is_odd(quadrant)
    return (torch.where(odd, -cosine, sine) / torch.where(odd, sine, cosine)).to(result_dtype(x))


@in_double
def atan(x: Tensor) -> Tensor:
    """Arc tangent: three ranges of |x| are mapped to [0, tan(pi/8)]."""
    size = x.abs()
    large, middle = size > 2.414213562373095, size > 0.41421356237309503
    turned = torch.where(middle, (size - 1.0) / (size + 1.0), size)
    reduced = torch.where(large, -1.0 / size, turned)
    # Add 0, 1 or 2 times pi/4, without rounding to f32 constants.
    base = (large.to(x.dtype) + middle.to(x.dtype)) * (pi / 4)
    angle = base + reduced * polynomial(reduced * reduced, ATAN)
    return torch.where(x < 0, -angle, angle)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of a point, with signs of zeros and of infinities as in C."""
    dtype = promote_dtypes(y, x)
    y, x = y.to(torch.float64), x.to(torch.float64)
    height, width = y.abs(), x.abs()
    slope = height / width
    # 0/0 and inf/inf.
    slope = torch.where((height == 0) & (width == 0), 0.0, slope)
    slope = torch.where((height == inf) & (width == inf), 1.0, slope)
    angle = torch.atan(slope)
    angle = torch.where(torch.signbit(x), pi - angle, angle)
    return torch.copysign(angle, y).to(dtype)


@in_double
def asin(x: Tensor) -> Tensor:
    """Arc sine, from the arc tangent."""
    return torch.atan(x / torch.sqrt((1.0 - x) * (1.0 + x)))


@in_double
def acos(x: Tensor) -> Tensor:
    """Arc cosine, from the arc tangent of the half angle."""
    return 2.0 * torch.atan(torch.sqrt((1.0 - x) / (1.0 + x)))


def _by_quadrant(x: Tensor, shift: int) -> Tensor:
    if x.is_complex() or x.dtype == torch.float32:
        return NotImplemented
    dtype = result_dtype(x)
    if dtype != torch.float64:
        return (torch.cos if shift else torch.sin)(x.to(torch.float32)).to(dtype)
    sine, cosine, quadrant = _in_quadrant(x)
    quadrant = quadrant + float(shift)
    quadrant = quadrant - 4.0 * torch.floor(quadrant * 0.25)
    value = torch.where(_is_odd(quadrant), cosine, sine)
    return torch.where(quadrant >= 2.0, -value, value).to(dtype)


def _is_odd(quadrant: Tensor) -> Tensor:
    half = quadrant * 0.5
    return half != torch.floor(half)


def _in_quadrant(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sine and cosine of the angle to the nearest axis, and the number of that axis."""
    wide = x.to(torch.float64)
    turns = torch.round(wide * (2 / pi))
    near = ((wide - turns * _HALF_PI[0]) - turns * _HALF_PI[1]) - turns * _HALF_PI[2]
    if x.dtype in _DIGITS:
        quarters = _quarters(wide, _DIGITS[x.dtype])
        far, axis = wide.abs() > _FAR, torch.round(quarters)
        turns = torch.where(far, axis, turns)
        near = torch.where(far, (quarters - axis) * (pi / 2), near)
    square = near * near
    sine = near * polynomial(square, SIN_SERIES)
    return sine, polynomial(square, COS_SERIES), turns


# Up to here products of _HALF_PI with quadrant numbers are exact.
_FAR = 2.0**20


def _quarters(x: Tensor, digits: int) -> Tensor:
    """The angle in quarter turns, from exact products with digits of 1/(2 pi) modulo 1."""
    # Narrower types have at most 24 bits, so that products with digits are exact.
    parts = (x,) if digits == _DIGITS[torch.float32] else halves(x)
    quarters = torch.zeros_like(x)
    for digit in _TURNS[:digits]:
        for part in parts:
            turns = part * digit
            quarters = quarters + (turns - torch.round(turns))
    return (quarters - torch.round(quarters)) * 4.0


# 1 / (2 pi) as digits of 26 bits, each scaled by its place value.
_INVERSE = int(
    "28be60db9391054a7f09d5f47d4d377036d8a5664f10e410"
    "7f9458eaf7aef1586dc91b8e909374b801924bba82746487",
    16,
)
_BITS = 4 * 96
_TURNS = tuple(
    ((_INVERSE >> (_BITS - 26 * (n + 1))) & (2**26 - 1)) * 2.0 ** (-26 * (n + 1)) for n in range(11)
)

# Digits needed for the largest number; for f64, for numbers in the range of f32.
_DIGITS = {torch.float32: 8, torch.bfloat16: 8, torch.float64: 10}


RULES: dict[Any, Callable[..., Any]] = {
    aten.sin.default: sin,
    aten.cos.default: cos,
    aten.tan.default: tan,
    aten.atan.default: atan,
    aten.atan2.default: atan2,
    aten.asin.default: asin,
    aten.acos.default: acos,
}
