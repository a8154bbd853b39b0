"""The logarithm of the gamma function and its derivatives, by shifting arguments above 8.

All are computed in f64; arguments below 0.5 use reflection formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, inf, log, nan, pi
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.polynomial import polynomial
from turbine.capture.rules.widening import in_double

aten = torch.ops.aten

_SHIFTS = 8
# The Bernoulli numbers B(2j) of the asymptotic series, for j = 1, 2, ...
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


@in_double
def lgamma(x: Tensor) -> Tensor:
    """lgamma by Stirling's series; infinite at zero, negative integers and both infinities."""
    low = x < 0.5
    z = torch.where(low, 1.0 - x, x)
    product = z
    for shift in range(1, _SHIFTS):
        product = product * (z + shift)
    product = torch.where(z < _SHIFTS, product, 1.0)
    w = torch.where(z < _SHIFTS, z + _SHIFTS, z)
    series = [b / (2 * j * (2 * j - 1)) for j, b in enumerate(_BERNOULLI, start=1)]
    rest = polynomial(1.0 / (w * w), tuple(reversed(series))) / w
    value = (w - 0.5) * torch.log(w) - w + 0.5 * log(2 * pi) + rest - torch.log(product)
    sine = torch.sin(pi * (x - torch.floor(x))).abs()
    # Not `number - tensor`: the compiler rounds a number on the left to f32.
    reflected = log(pi) + (-torch.log(sine) - value)
    value = torch.where(low, reflected, value)
    pole = (x <= 0.0) & (x == torch.floor(x))
    return torch.where(pole | (x.abs() == inf), inf, value)


@in_double
def digamma(x: Tensor) -> Tensor:
    """The derivative of lgamma: nan at negative integers, infinite at zero with opposite sign."""
    low = x < 0.5
    z = torch.where(low, 1.0 - x, x)
    value = -sum((1.0 / (z + shift) for shift in range(_SHIFTS)), torch.zeros_like(z))
    w = z + _SHIFTS
    series = [-b / (2 * j) for j, b in enumerate(_BERNOULLI, start=1)]
    square = 1.0 / (w * w)
    value = value + torch.log(w) - 0.5 / w + square * polynomial(square, tuple(reversed(series)))
    turn = pi * (x - torch.floor(x))
    value = torch.where(low, value - pi * torch.cos(turn) / torch.sin(turn), value)
    pole = (x < 0.0) & (x == torch.floor(x))
    value = torch.where(pole, nan, value)
    return torch.where(x == 0.0, -1.0 / x, value)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma."""
    return torch.digamma(x) if n == 0 else _derivative(x, n)


@in_double
def _derivative(x: Tensor, n: int) -> Tensor:
    low = x < 0.5
    sign = -1.0 if n % 2 == 0 else 1.0
    value = sign * factorial(n) * _hurwitz(torch.where(low, 1.0 - x, x), n + 1)
    turn = pi * (x - torch.floor(x))
    slope = polynomial(torch.cos(turn) / torch.sin(turn), _cotangent_derivative(n))
    value = torch.where(low, -sign * value - pi ** (n + 1) * slope, value)
    pole = (x <= 0.0) & (x == torch.floor(x))
    value = torch.where(pole, sign * inf, value)
    return value if n == 1 else torch.where(x == inf, nan, value)


def _cotangent_derivative(n: int) -> tuple[float, ...]:
    """The n-th derivative of cot as a polynomial in cot, highest power first."""
    coefficients = [0.0, 1.0]  # lowest power first
    for _ in range(n):
        slopes = [power * c for power, c in enumerate(coefficients)][1:]
        below, above = [*slopes, 0.0, 0.0], [0.0, 0.0, *slopes]
        # The derivative of cot is -(1 + cot**2).
        coefficients = [-(low + high) for low, high in zip(below, above, strict=True)]
    return tuple(reversed(coefficients))


def _hurwitz(q: Tensor, s: int) -> Tensor:
    """The sum of (q + k) ** -s over all k: some terms, then the Euler-Maclaurin formula."""
    count = 2 * _SHIFTS
    value = sum(((1.0 / (q + k)) ** s for k in range(count)), torch.zeros_like(q))
    w = 1.0 / (q + count)
    value = value + w ** (s - 1) / (s - 1) + 0.5 * w**s
    factor = float(s)
    for j, b in enumerate(_BERNOULLI, start=1):
        value = value + (b * factor / factorial(2 * j)) * w ** (s + 2 * j - 1)
        factor *= (s + 2 * j - 1) * (s + 2 * j)
    return value


RULES: dict[Any, Callable[..., Any]] = {
    aten.lgamma.default: lgamma,
    aten.digamma.default: digamma,
    aten.polygamma.default: polygamma,
}
