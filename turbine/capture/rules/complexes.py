"""Complex ops as ops on real and imaginary parts, where the compiler has none."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules import arithmetic

aten = torch.ops.aten


def parts(x: Tensor | complex) -> tuple[Any, Any]:
    """Real and imaginary, as tensors or numbers."""
    if isinstance(x, Tensor):
        return (torch.real(x), torch.imag(x)) if x.is_complex() else (x, 0.0)
    return complex(x).real, complex(x).imag


def make_complex(real: Tensor, imaginary: Tensor, dtype: torch.dtype) -> Tensor:
    """A complex tensor from two parts, which are broadcast."""
    part = dtype.to_real()
    real, imaginary = torch.broadcast_tensors(real.to(part), imaginary.to(part))
    return torch.complex(real.contiguous(), imaginary.contiguous())


def _is_complex(*values: Any) -> bool:
    return any(isinstance(v, complex) or (isinstance(v, Tensor) and v.is_complex()) for v in values)


def add(a: Tensor, b: Any, alpha: Any = 1) -> Tensor:
    """Part by part."""
    if not _is_complex(a, b):
        return NotImplemented
    if isinstance(alpha, complex):
        return a + b * alpha
    (ar, ai), (br, bi) = parts(a), parts(b)
    return make_complex(ar + alpha * br, _sum(ai, alpha * bi, ar), torch.result_type(a, b))


def sub(a: Tensor, b: Any, alpha: Any = 1) -> Tensor:
    """Part by part."""
    return add(a, b, -alpha) if _is_complex(a, b) else NotImplemented


def _sum(a: Any, b: Any, like: Tensor) -> Tensor:
    total = a + b
    return total if isinstance(total, Tensor) else torch.full_like(like, total)


def mul(a: Tensor, b: Any) -> Tensor:
    """The complex product; two multiplications if one factor is real."""
    if not _is_complex(a, b):
        return NotImplemented
    (ar, ai), (br, bi) = parts(a), parts(b)
    real, imaginary = ar * br, ai * br
    if _is_complex(b):
        real, imaginary = real - ai * bi, imaginary + ar * bi
    return make_complex(real, imaginary, torch.result_type(a, b))


def neg(x: Tensor) -> Tensor:
    """Part by part."""
    if not x.is_complex():
        return arithmetic.negative(x)
    return make_complex(-torch.real(x), -torch.imag(x), x.dtype)


def conj(x: Tensor) -> Tensor:
    """The complex conjugate; real numbers are unchanged."""
    return x if not x.is_complex() else make_complex(torch.real(x), -torch.imag(x), x.dtype)


def exp(x: Tensor) -> Tensor:
    """exp(real) times (cos(imaginary), sin(imaginary))."""
    length, direction = torch.exp(x.real), x.imag
    # 0 * cos(inf) and inf * sin(0) would be nan.
    real = torch.where(length == 0, 0.0, length * torch.cos(direction))
    is_real = (length == 0) | (direction == 0)
    return make_complex(real, torch.where(is_real, 0.0, length * torch.sin(direction)), x.dtype)


def reciprocal(x: Tensor) -> Tensor:
    """conj(x) / |x|**2, scaled so that the square does not overflow."""
    larger = torch.maximum(x.real.abs(), x.imag.abs())
    smaller = torch.minimum(x.real.abs(), x.imag.abs())
    is_zero = (larger == inf) & (smaller < inf)
    real, imaginary = x.real / larger, x.imag / larger
    square = real * real + imaginary * imaginary
    real = torch.where(is_zero, 0.0, real / square / larger)
    return make_complex(real, torch.where(is_zero, 0.0, -imaginary / square / larger), x.dtype)


def sigmoid(x: Tensor) -> Tensor:
    """The compiler negates real numbers only."""
    return torch.reciprocal(torch.exp(-x) + 1)


def absolute(x: Tensor) -> Tensor:
    """The length."""
    return torch.hypot(torch.real(x), torch.imag(x)) if x.is_complex() else NotImplemented


def angle(x: Tensor) -> Tensor:
    """The angle; 0 or pi for a real number."""
    if x.is_complex():
        return torch.atan2(torch.imag(x), torch.real(x))
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    turned = torch.where(x < 0, pi, 0.0).to(dtype)
    return torch.where(x != x, nan, turned) if x.is_floating_point() else turned


def polar(length: Tensor, direction: Tensor) -> Tensor:
    """The complex number with an absolute value and an angle."""
    real, imaginary = length * torch.cos(direction), length * torch.sin(direction)
    return torch.complex(real, imaginary)


def to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Convert real to complex."""
    if x.is_complex() or dtype is None or not dtype.is_complex or dtype == torch.complex32:
        return NotImplemented
    layout = options.get("memory_format") or torch.preserve_format
    real = x.to(dtype.to_real(), memory_format=layout)
    return torch.complex(real, torch.zeros_like(real))


def total(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Part by part."""
    if not x.is_complex() or (dtype is not None and dtype != x.dtype):
        return NotImplemented
    real = torch.real(x).sum(dim, keepdim=keepdim)
    return make_complex(real, torch.imag(x).sum(dim, keepdim=keepdim), x.dtype)


RULES: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: add,
    aten.add.Scalar: add,
    aten.sub.Tensor: sub,
    aten.sub.Scalar: sub,
    aten.mul.Tensor: mul,
    aten.mul.Scalar: mul,
    aten.neg.default: neg,
    aten.conj_physical.default: conj,
    aten._conj_physical.default: conj,
    aten.abs.default: absolute,
    aten.angle.default: angle,
    aten.polar.default: polar,
    aten._to_copy.default: to_copy,
}

# For exported programs, where an operand, a number or the dtype of the result is complex.
OF_COMPLEX: dict[Any, Callable[..., Any]] = {
    aten._conj.default: conj,
    aten.exp.default: exp,
    aten.reciprocal.default: reciprocal,
    aten.sigmoid.default: sigmoid,
}
