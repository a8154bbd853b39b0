"""Exponentials, logarithms, the error function and activations made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import log, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from turbine import fits
from turbine.capture.rules.polynomial import polynomial
from turbine.capture.rules.widening import double_only, in_double, promote_dtypes, result_dtype
from turbine.capture.sizes import is_empty

aten = torch.ops.aten


@double_only
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1 with Kahan's correction for small x."""
    grown = torch.exp(x)
    corrected = (grown - 1.0) * x / torch.log(grown)
    return torch.where(grown == 1.0, x, torch.where(x.abs() < 1.0, corrected, grown - 1.0))


@double_only
def log1p(x: Tensor) -> Tensor:
    """log(1 + x) with Kahan's correction for small x."""
    grown = 1.0 + x
    corrected = torch.log(grown) * x / (grown - 1.0)
    return torch.where(grown == 1.0, x, torch.where(x.abs() < 1.0, corrected, torch.log(grown)))


@in_double
def sinh(x: Tensor) -> Tensor:
    """sinh by expm1, accurate for small x; of halves, finite for large x."""
    size = x.abs()
    grown = torch.expm1(torch.clamp(size, max=20.0))
    near = 0.5 * (grown + grown / (grown + 1.0))
    half = torch.exp(0.5 * size)
    value = torch.where(size > 20.0, 0.5 * half * half, near)
    return torch.where(x < 0, -value, value)


@in_double
def atanh(x: Tensor) -> Tensor:
    """atanh by log1p, accurate for small x."""
    return 0.5 * (torch.log1p(x) - torch.log1p(-x))


@double_only
def tanh(x: Tensor) -> Tensor:
    """tanh; above 22 the result rounds to one."""
    grown = torch.expm1(2.0 * torch.clamp(x.abs(), max=22.0))
    value = grown / (grown + 2.0)
    return torch.where(x < 0, -value, value)


@double_only
def log2(x: Tensor) -> Tensor:
    """log2 by the natural logarithm, which has f64 code."""
    return torch.log(x) * (1 / log(2))


@in_double
def log10(x: Tensor) -> Tensor:
    """log10 by the natural logarithm: the compiler calls a library function that is missing."""
    return torch.log(x) * (1 / log(10))


@in_double
def asinh(x: Tensor) -> Tensor:
    """asinh, odd by construction; the compiler's gives nan for -inf."""
    size = x.abs()
    middle = torch.clamp(size, max=1e8)
    value = torch.log1p(middle + middle * middle / (1.0 + torch.sqrt(middle * middle + 1.0)))
    value = torch.where(size > 1e8, torch.log(size) + log(2), value)
    return torch.where(x < 0, -value, value)


@double_only
def erf(x: Tensor) -> Tensor:
    """erf by a power series near zero, else 1 - erfc(x)."""
    small = torch.clamp(x, -1.0, 1.0)
    near = small * polynomial(small * small, fits.ERF_SERIES)
    far = 1.0 - _complement(x.abs())
    return torch.where(x.abs() < 1.0, near, torch.where(x < 0.0, -far, far))


@in_double
def erfc(x: Tensor) -> Tensor:
    """1 - erf(x) near zero, else a fit of erfc, which avoids cancellation."""
    far = _complement(x.abs())
    return torch.where(x.abs() < 1.0, 1.0 - torch.erf(x), torch.where(x < 0.0, 2.0 - far, far))


def _complement(size: Tensor) -> Tensor:
    """erfc for x >= 1; above 27 it is zero."""
    size = torch.clamp(size, 1.0, 30.0)
    return torch.exp(-size * size) * polynomial((size - 2.0) / (size + 2.0), fits.SCALED_ERFC)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU; the tanh form has all digits of its constants, where the compiler has four."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if approximate == "none":
        return (0.5 * wide * (1.0 + torch.erf(wide * sqrt(0.5)))).to(x.dtype)
    inner = sqrt(2 / pi) * (wide + 0.044715 * wide * wide * wide)
    return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """ELU by expm1, accurate for small x; the compiler subtracts one from exp."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    below = (alpha * scale) * torch.expm1(wide * input_scale)
    return torch.where(wide > 0, wide * scale, below).to(x.dtype)


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """logcumsumexp relative to the running maximum, in quadratic time."""
    if x.dim() == 0 or is_empty(x):
        return x.clone()
    if x.is_complex():
        return NotImplemented
    row = x.movedim(dim, -1).to(torch.promote_types(x.dtype, torch.float32))
    places = torch.arange(row.shape[-1], device=x.device)
    seen = places <= places.unsqueeze(-1)
    held = torch.where(seen, row.unsqueeze(-2), float("-inf"))
    return torch.logsumexp(held, -1).to(x.dtype).movedim(-1, dim).contiguous()


def signbit(x: Tensor) -> Tensor:
    """Whether the sign bit is set, also of -0.0."""
    if x.dtype == torch.bool:
        return torch.zeros_like(x)
    return (x < 0) | ((x == 0) & (1.0 / x < 0)) if x.is_floating_point() else x < 0


def copysign(x: Tensor, sign: Tensor) -> Tensor:
    """The magnitude of one number with the sign of another."""
    size = x.to(promote_dtypes(x, sign)).abs()
    return torch.where(torch.signbit(sign), -size, size)


def copysign_of_number(x: Tensor, sign: float) -> Tensor:
    """copysign with a Python number."""
    size = x.to(result_dtype(x)).abs()
    return -size if math.copysign(1, sign) < 0 else size


RULES: dict[Any, Callable[..., Any]] = {
    aten.expm1.default: expm1,
    aten.log1p.default: log1p,
    aten.sinh.default: sinh,
    aten.atanh.default: atanh,
    aten.tanh.default: tanh,
    aten.log2.default: log2,
    aten.log10.default: log10,
    aten.asinh.default: asinh,
    aten.erf.default: erf,
    aten.erfc.default: erfc,
    aten.gelu.default: gelu,
    aten.elu.default: elu,
    aten.logcumsumexp.default: logcumsumexp,
    aten.signbit.default: signbit,
    aten.copysign.Tensor: copysign,
    aten.copysign.Scalar: copysign_of_number,
}
