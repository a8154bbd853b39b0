"""Functions of the normal distribution: erfinv, ndtri and erfcx."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from turbine import fits
from turbine.capture.rules.polynomial import polynomial
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
    """The quantile, erfinv(2 p - 1), with 4 p (1 - p) for 1 - (2 p - 1) ** 2: exact for small p."""
    value = sqrt(2) * (2.0 * p - 1.0) * _over_argument(4.0 * p * (1.0 - p))
    value = torch.where(p == 0.0, -inf, torch.where(p == 1.0, inf, value))
    return torch.where((p < 0.0) | (p > 1.0), nan, value)


def _over_argument(rest: Tensor) -> Tensor:
    """erfinv(x) / x, given 1 - x x."""
    w = -torch.log(rest)
    root = torch.sqrt(w)
    near = polynomial(_to_unit_interval(w, 0.0, 5.0), fits.ERFINV_NEAR)
    middle = polynomial(_to_unit_interval(root, sqrt(5), 6.0), fits.ERFINV_MIDDLE)
    far = polynomial(_to_unit_interval(root, 6.0, 26.5), fits.ERFINV_FAR)
    return torch.where(w <= 5.0, near, torch.where(root <= 6.0, middle, far))


def _to_unit_interval(x: Tensor, low: float, high: float) -> Tensor:
    """Map [low, high] to [-1, 1]."""
    return (torch.clamp(x, low, high) - low) * (2 / (high - low)) - 1.0


@in_double
def erfcx(x: Tensor) -> Tensor:
    """erfc(x) exp(x x): a fit for x >= 1, two terms of a series above 30, symmetry below zero."""
    size = x.abs()
    held = torch.clamp(size, 1.0, 30.0)
    far = polynomial((held - 2.0) / (held + 2.0), fits.SCALED_ERFC)
    tail = (1.0 - 0.5 / (size * size)) / (size * sqrt(pi))
    far = torch.where(size > 30.0, tail, far)
    grown = torch.exp(x * x)
    near = grown * torch.erfc(torch.clamp(x, -1.0, 1.0))
    return torch.where(size < 1.0, near, torch.where(x < 0.0, 2.0 * grown - far, far))


RULES: dict[Any, Callable[..., Any]] = {
    aten.erfinv.default: erfinv,
    aten.special_ndtri.default: ndtri,
    aten.special_erfcx.default: erfcx,
}
