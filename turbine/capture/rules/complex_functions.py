"""Functions of complex numbers as formulas of their parts in f64, for exported programs.

In f64 no square of a complex64 overflows or underflows. Branch cuts are as in C: the sign of a zero
chooses the side.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.complexes import make_complex, parts

aten = torch.ops.aten
Parts = tuple[Tensor, Tensor]

# exp of it is finite in f64, and infinite in f32 times any sine of an f32 number.
_LARGEST_EXPONENT = 700.0


def _of_parts(function: Callable[[Tensor, Tensor], Parts]) -> Callable[[Tensor], Tensor]:
    """A function of a complex tensor, from one that maps its parts in f64."""

    def apply(x: Tensor) -> Tensor:
        if x.dtype != torch.complex64:
            return NotImplemented
        real, imaginary = function(x.real.to(torch.float64), x.imag.to(torch.float64))
        return make_complex(real, imaginary, x.dtype)

    return apply


def _length(a: Tensor, b: Tensor) -> Tensor:
    return torch.sqrt(a * a + b * b)


def _sqrt(a: Tensor, b: Tensor) -> Parts:
    """The root with a real part that is not negative."""
    larger = torch.sqrt((_length(a, b) + a.abs()) * 0.5)
    smaller = torch.where(larger == 0, 0.0, b.abs() / (2.0 * larger))
    is_left, is_infinite = a < 0, b.abs() == inf
    real = torch.where(is_infinite, inf, torch.where(is_left, smaller, larger))
    imaginary = torch.where(is_infinite, inf, torch.where(is_left, larger, smaller))
    return real, torch.copysign(imaginary, b)


def _rsqrt(a: Tensor, b: Tensor) -> Parts:
    real, imaginary = _sqrt(a, b)
    square = real * real + imaginary * imaginary
    is_zero = (square == inf) & (torch.minimum(real, imaginary.abs()) < inf)
    real, imaginary = real / square, -imaginary / square
    return torch.where(is_zero, 0.0, real), torch.where(is_zero, 0.0, imaginary)


def _log(a: Tensor, b: Tensor) -> Parts:
    """The logarithm; of a number near the unit circle, from its distance to it."""
    width, height = a.abs(), b.abs()
    # Not torch.maximum: that of inf and nan is nan.
    is_wide = width > height
    large, small = torch.where(is_wide, width, height), torch.where(is_wide, height, width)
    above = (large - 1.0) * (large + 1.0) + small * small
    far = 0.5 * torch.log(a * a + b * b)
    return torch.where(above.abs() < 0.5, 0.5 * torch.log1p(above), far), torch.atan2(b, a)


def _log1p(a: Tensor, b: Tensor) -> Parts:
    """log(1 + x), accurate for small x."""
    above, whole = a * (a + 2.0) + b * b, a + 1.0
    far = 0.5 * torch.log(whole * whole + b * b)
    return torch.where(above.abs() < 0.5, 0.5 * torch.log1p(above), far), torch.atan2(b, whole)


def _log_of_base(base: float) -> Callable[[Tensor, Tensor], Parts]:
    def function(a: Tensor, b: Tensor) -> Parts:
        real, imaginary = _log(a, b)
        return real * (1 / log(base)), imaginary * (1 / log(base))

    return function


def _exp(a: Tensor, b: Tensor) -> Parts:
    """exp(a) times (cos(b), sin(b)); zero if exp(a) is."""
    length = torch.exp(torch.clamp(a, max=_LARGEST_EXPONENT))
    real, imaginary = length * torch.cos(b), length * torch.sin(b)
    return torch.where(length == 0, 0.0, real), torch.where(length == 0, 0.0, imaginary)


def _exp2(a: Tensor, b: Tensor) -> Parts:
    return _exp(a * log(2), b * log(2))


def _expm1(a: Tensor, b: Tensor) -> Parts:
    """exp(x) - 1, accurate for small x."""
    a, half = torch.clamp(a, max=_LARGEST_EXPONENT), torch.sin(b * 0.5)
    real = torch.expm1(a) * torch.cos(b) - 2.0 * half * half
    return real, torch.exp(a) * torch.sin(b)


def _hyperbolic(a: Tensor) -> Parts:
    """cosh and sinh."""
    bounded = torch.clamp(a, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    grown = torch.exp(bounded)
    return 0.5 * (grown + 1.0 / grown), torch.sinh(bounded)


def _cosh(a: Tensor, b: Tensor) -> Parts:
    even, odd = _hyperbolic(a)
    return even * torch.cos(b), odd * torch.sin(b)


def _sinh(a: Tensor, b: Tensor) -> Parts:
    even, odd = _hyperbolic(a)
    return odd * torch.cos(b), even * torch.sin(b)


def _tanh(a: Tensor, b: Tensor) -> Parts:
    """tanh, without cancellation near its poles."""
    # At 60 the real part rounds to 1, and the imaginary part to 0.
    bounded = torch.clamp(a, -60.0, 60.0)
    even, odd = _hyperbolic(bounded)
    cosine, sine = torch.cos(b), torch.sin(b)
    square = odd * odd + cosine * cosine
    real, imaginary = odd * even / square, sine * cosine / square
    is_infinite = a.abs() == inf
    limit = torch.copysign(torch.ones_like(a), a)
    return torch.where(is_infinite, limit, real), torch.where(is_infinite, 0.0, imaginary)


def _asin(a: Tensor, b: Tensor) -> Parts:
    """Kahan's formula: roots of 1 - x and 1 + x keep the sides of the branch cuts."""
    (lr, li), (rr, ri) = _sqrt(1.0 - a, -b), _sqrt(1.0 + a, b)
    return torch.atan2(a, lr * rr - li * ri), torch.asinh(lr * ri - li * rr)


def _acos(a: Tensor, b: Tensor) -> Parts:
    (lr, li), (rr, ri) = _sqrt(1.0 - a, -b), _sqrt(1.0 + a, b)
    return 2.0 * torch.atan2(lr, rr), torch.asinh(rr * li - ri * lr)


def _acosh(a: Tensor, b: Tensor) -> Parts:
    (lr, li), (rr, ri) = _sqrt(a - 1.0, b), _sqrt(a + 1.0, b)
    return torch.asinh(lr * rr + li * ri), 2.0 * torch.atan2(li, rr)


def _atanh(a: Tensor, b: Tensor) -> Parts:
    beside = (1.0 - a.abs()) * (1.0 - a.abs()) + b * b
    real = torch.copysign(0.25 * torch.log1p(4.0 * a.abs() / beside), a)
    return real, 0.5 * torch.atan2(2.0 * b, (1.0 - a) * (1.0 + a) - b * b)


def _turned(function: Callable[[Tensor, Tensor], Parts]) -> Callable[[Tensor, Tensor], Parts]:
    """f(ix) / i, which makes sin of sinh, and asinh of asin."""

    def of_parts(a: Tensor, b: Tensor) -> Parts:
        real, imaginary = function(-b, a)
        return imaginary, -real

    return of_parts


def _cos(a: Tensor, b: Tensor) -> Parts:
    return _cosh(-b, a)


def sgn(x: Tensor) -> Tensor:
    """The number divided by its length; 0 for 0."""
    if x.dtype != torch.complex64:
        return NotImplemented
    a, b = x.real.to(torch.float64), x.imag.to(torch.float64)
    length = torch.where((a == 0) & (b == 0), 1.0, _length(a, b))
    return make_complex(a / length, b / length, x.dtype)


def divide(x: Any, y: Any) -> Tensor:
    """Smith's formula, which PyTorch uses too: infinite parts are not multiplied."""
    dtype = torch.result_type(x, y)
    (a, b), (c, d) = _wide_parts(x), _wide_parts(y)
    if not isinstance(y, Tensor):
        c, d = torch.full_like(a, c), torch.full_like(a, d)
    is_wide = c.abs() >= d.abs()
    large, small = torch.where(is_wide, c, d), torch.where(is_wide, d, c)
    ratio = small / large
    scale = 1.0 / (large + small * ratio)
    real = torch.where(is_wide, a + b * ratio, a * ratio + b) * scale
    imaginary = torch.where(is_wide, b - a * ratio, b * ratio - a) * scale
    is_zero = large == 0
    real = torch.where(is_zero, a / c.abs(), real)
    return make_complex(real, torch.where(is_zero, b / d.abs(), imaginary), dtype)


def blend(x: Tensor, y: Tensor, weight: complex) -> Tensor:
    """From x towards y, from the nearer end."""
    return x + weight * (y - x) if abs(weight) < 0.5 else y - (y - x) * (1 - weight)


def power(x: Any, exponent: Any) -> Tensor:
    """x ** exponent: exp(exponent * log(x)), of some numbers as a product or a root."""
    if not isinstance(exponent, Tensor) and exponent in _POWERS:
        like = x.to(torch.result_type(x, exponent))
        return _POWERS[exponent](like) if like.is_complex() else NotImplemented
    if not torch.result_type(x, exponent).is_complex:
        return NotImplemented
    like = exponent if isinstance(exponent, Tensor) else x
    (a, b), (c, d) = (_wide_parts(value, like) for value in (x, exponent))
    length, angle = _log(a, b)
    real, imaginary = _exp(c * length - d * angle, c * angle + d * length)
    return make_complex(real, imaginary, torch.result_type(x, exponent))


def _wide_parts(x: Any, like: Tensor | None = None) -> tuple[Any, Any]:
    """Both parts in f64; of a number as tensors of rank 0, if `like` is given."""
    a, b = parts(x)
    if isinstance(x, Tensor):
        a = a.to(torch.float64)
        return a, b.to(torch.float64) if isinstance(b, Tensor) else torch.zeros_like(a)
    if like is None:
        return a, b
    a, b = (torch.full((), part, dtype=torch.float64, device=like.device) for part in (a, b))
    return a, b


_sqrt_of, _rsqrt_of = _of_parts(_sqrt), _of_parts(_rsqrt)
_POWERS: dict[complex, Callable[[Tensor], Tensor]] = {
    0.0: torch.ones_like,
    1.0: torch.clone,
    0.5: _sqrt_of,
    -0.5: _rsqrt_of,
    -1.0: torch.reciprocal,
    2.0: lambda x: x * x,
    -2.0: lambda x: torch.reciprocal(x * x),
    3.0: lambda x: x * x * x,
}

OF_COMPLEX: dict[Any, Callable[..., Any]] = {
    aten.sqrt.default: _sqrt_of,
    aten.rsqrt.default: _rsqrt_of,
    aten.log.default: _of_parts(_log),
    aten.log2.default: _of_parts(_log_of_base(2)),
    aten.log10.default: _of_parts(_log_of_base(10)),
    aten.log1p.default: _of_parts(_log1p),
    aten.exp2.default: _of_parts(_exp2),
    aten.expm1.default: _of_parts(_expm1),
    aten.cosh.default: _of_parts(_cosh),
    aten.sinh.default: _of_parts(_sinh),
    aten.tanh.default: _of_parts(_tanh),
    aten.cos.default: _of_parts(_cos),
    aten.sin.default: _of_parts(_turned(_sinh)),
    aten.tan.default: _of_parts(_turned(_tanh)),
    aten.asin.default: _of_parts(_asin),
    aten.acos.default: _of_parts(_acos),
    aten.atan.default: _of_parts(_turned(_atanh)),
    aten.asinh.default: _of_parts(_turned(_asin)),
    aten.acosh.default: _of_parts(_acosh),
    aten.atanh.default: _of_parts(_atanh),
    aten.sgn.default: sgn,
    aten.div.Tensor: divide,
    aten.div.Scalar: divide,
    aten.lerp.Scalar: blend,
    aten.pow.Tensor_Scalar: power,
    aten.pow.Tensor_Tensor: power,
    aten.pow.Scalar: power,
}
