"""Functions of the normal distribution: the inverses of erf and of its integral, scaled erfc."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.polynomial import SCALED_ERFC, polynomial
from turbine.capture.rules.widening import in_double

aten = torch.ops.aten


@in_double
def erfinv(x: Tensor) -> Tensor:
    """x times a polynomial in w = -log(1 - x x), or in its square root."""
    value = x * _over_argument((1.0 - x) * (1.0 + x))
    value = torch.where(x.abs() == 1.0, x * inf, value)
    return torch.where(x.abs() > 1.0, nan, value)


@in_double
def ndtri(p: Tensor) -> Tensor:
    """The quantile: erfinv(2 p - 1) with 1 - (2 p - 1) ** 2 = 4 p (1 - p), which keeps small p."""
    value = sqrt(2) * (2.0 * p - 1.0) * _over_argument(4.0 * p * (1.0 - p))
    value = torch.where(p == 0.0, -inf, torch.where(p == 1.0, inf, value))
    return torch.where((p < 0.0) | (p > 1.0), nan, value)


def _over_argument(rest: Tensor) -> Tensor:
    """erfinv(x) / x, given 1 - x x."""
    w = -torch.log(rest)
    root = torch.sqrt(w)
    near = polynomial(_to_unit_interval(w, 0.0, 5.0), _ERFINV_NEAR)
    middle = polynomial(_to_unit_interval(root, sqrt(5), 6.0), _ERFINV_MIDDLE)
    far = polynomial(_to_unit_interval(root, 6.0, 26.5), _ERFINV_FAR)
    return torch.where(w <= 5.0, near, torch.where(root <= 6.0, middle, far))


def _to_unit_interval(x: Tensor, low: float, high: float) -> Tensor:
    """The interval of a fit brought to [-1, 1]."""
    return (torch.clamp(x, low, high) - low) * (2 / (high - low)) - 1.0


@in_double
def erfcx(x: Tensor) -> Tensor:
    """erfc(x) exp(x x): a fit from 1 on, two terms of a series past 30, symmetry below zero."""
    size = x.abs()
    held = torch.clamp(size, 1.0, 30.0)
    far = polynomial((held - 2.0) / (held + 2.0), SCALED_ERFC)
    tail = (1.0 - 0.5 / (size * size)) / (size * sqrt(pi))
    far = torch.where(size > 30.0, tail, far)
    grown = torch.exp(x * x)
    near = grown * torch.erfc(torch.clamp(x, -1.0, 1.0))
    return torch.where(size < 1.0, near, torch.where(x < 0.0, 2.0 * grown - far, far))


# erfinv(x) / x in w = -log(1 - x x) from 0 to 5, a Chebyshev fit.
_ERFINV_NEAR = (
    2.3726870867478122e-08,
    3.5301382432588205e-08,
    -1.3972178110337967e-07,
    -2.0282927432773604e-07,
    3.602427073008805e-07,
    5.083960406255043e-07,
    -5.351648459298353e-07,
    -7.30214217259784e-07,
    5.14704654946124e-07,
    6.527993281182171e-07,
    -3.8592215540863197e-07,
    -1.9338693308287471e-07,
    2.6822332339816953e-07,
    -1.698298270873933e-06,
    2.814592841456359e-06,
    8.612300333138857e-06,
    -4.142536528129046e-05,
    2.0479064711654527e-05,
    0.00029218994507042046,
    -0.0008341362889248694,
    -0.000487898353543634,
    0.008525400983371307,
    -0.019573561060743743,
    -0.026108235778034457,
    0.6166006918604248,
    1.501409351110794,
)

# The same in the square root of w, from that of 5 to 6.
_ERFINV_MIDDLE = (
    -1.2893333287187764e-06,
    3.969616462290649e-06,
    1.9535536052364844e-06,
    -1.993169220397971e-05,
    2.0916550538644604e-05,
    1.25727320247272e-05,
    -5.188588623590171e-05,
    7.955103880211001e-05,
    -7.987231239517774e-05,
    -1.7252299473156394e-05,
    0.00023585013461833518,
    -0.0004384207891501348,
    0.00040898226690726236,
    -2.697521137659108e-05,
    -0.0006266651612840755,
    0.0012915462910571536,
    -0.0016909008005409018,
    0.0017304235306071936,
    -0.001572544328944099,
    0.0015531103738194532,
    -0.002040659499021337,
    0.0032789107096013546,
    -0.004880816980093132,
    0.0034609524554309137,
    1.9003271233353751,
    3.9589544956514833,
)

# The same from 6 to 26.5, where f64 ends.
_ERFINV_FAR = (
    -4.849711098161126e-06,
    8.87161217084227e-06,
    1.8094305218522304e-05,
    -3.5579333303009174e-05,
    -3.792298292720389e-05,
    7.757352660289161e-05,
    3.8533154965559304e-05,
    -8.718932606534535e-05,
    -3.928306997831974e-05,
    8.573870019881626e-05,
    -1.9609181031827646e-06,
    -1.4782515169273918e-05,
    -3.9474576571765404e-05,
    6.067935854253933e-05,
    -5.789588369785387e-05,
    6.402307251630932e-05,
    -6.098759785614333e-05,
    1.4849515774424695e-05,
    0.00012529847318769032,
    -0.0004687951068543378,
    0.0012452971235325447,
    -0.002933044472232496,
    0.006555274805812222,
    -0.014430298192790209,
    10.282507301590691,
    16.16781852181981,
)


RULES: dict[Any, Callable[..., Any]] = {
    aten.erfinv.default: erfinv,
    aten.special_ndtri.default: ndtri,
    aten.special_erfcx.default: erfcx,
}
