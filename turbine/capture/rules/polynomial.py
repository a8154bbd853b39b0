"""Polynomials on tensors, and the fits of special functions that rules share."""

from __future__ import annotations

from math import factorial, pi, sqrt

import torch
from torch import Tensor


def polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Horner's scheme, highest power first."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


# erf(x) / x as a power series in x squared, for |x| < 1.
ERF_SERIES = tuple(
    2 / sqrt(pi) * (-1) ** n / (factorial(n) * (2 * n + 1)) for n in reversed(range(22))
)

# sin(x) / x and cos(x) as power series in x squared, for |x| <= pi/4.
SIN_SERIES = tuple((-1) ** n / factorial(2 * n + 1) for n in reversed(range(9)))
COS_SERIES = tuple((-1) ** n / factorial(2 * n) for n in reversed(range(10)))

# erfc(x) exp(x x) for x in [1, 30], a Chebyshev fit in (x - 2) / (x + 2).
SCALED_ERFC = (
    -2.0706291620674477e-08,
    1.30395584997132e-07,
    -3.074982542061733e-07,
    3.129139934579615e-07,
    -1.2927697018874258e-07,
    4.121044871976249e-08,
    1.4593700032862543e-07,
    -1.7068557287574703e-07,
    -5.085835137837305e-07,
    -4.0381077256732505e-07,
    1.1915020390891763e-06,
    3.748797492352078e-06,
    1.394021888941734e-06,
    -1.396147111819698e-05,
    -2.7580464183321426e-05,
    2.7524864822623866e-05,
    0.00017436123272078732,
    4.3555635846129444e-05,
    -0.0009819770301085487,
    -0.0008471432519671807,
    0.006997461739290417,
    0.003732892404344453,
    -0.07897858101573309,
    0.24165819424246635,
    -0.4271858474139584,
    0.25539567631050575,
)

# atan(x) / x for |x| <= tan(pi/8), a Chebyshev fit in x squared.
ATAN = (
    0.015113765096600925,
    -0.03338782450121195,
    0.04499500728984032,
    -0.05217312574061591,
    0.05876834004614161,
    -0.06666205259976526,
    0.07692281099937744,
    -0.09090908059031191,
    0.11111111085322109,
    -0.1428571428532971,
    0.19999999999997015,
    -0.33333333333333326,
    1.0,
)
