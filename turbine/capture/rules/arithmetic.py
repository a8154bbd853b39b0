"""Arithmetic that the compiler gets wrong for nan, infinities and zeros."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from turbine.capture.rules.widening import halves
from turbine.capture.sizes import expression

aten = torch.ops.aten
Number = Tensor | float


def equal(a: Tensor, b: Tensor) -> Tensor:
    """The compiler folds x == x to true, for nan too."""
    return (a != b).logical_not() if torch.result_type(a, b).is_floating_point else NotImplemented


def _compare(op: Any) -> Callable[..., Tensor]:
    """A comparison of two dtypes in PyTorch's promoted dtype.

    The compiler treats integers compared with a bool as unsigned, and promotes to the wider of two
    floats even if one is a scalar.
    """

    def compare(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype == b.dtype:
            return NotImplemented
        dtype = torch.result_type(a, b)
        result: Tensor = op(a.to(dtype), b.to(dtype))
        return result

    return compare


_COMPARISONS = (
    aten.ne.Tensor,
    aten.lt.Tensor,
    aten.le.Tensor,
    aten.gt.Tensor,
    aten.ge.Tensor,
)


def power_of_scalar(x: Tensor, exponent: float) -> Tensor:
    """x ** exponent; the compiler uses exp(exponent * log(x)) except for positive integers."""
    dtype = torch.result_type(x, exponent)
    if isinstance(exponent, torch.SymInt) or dtype.is_complex:
        return NotImplemented
    if not dtype.is_floating_point:
        return _product_of_itself(x.to(dtype), int(exponent))
    if dtype != x.dtype:
        return torch.pow(x.to(dtype), exponent)
    if exponent in _ROOTS:
        return _ROOTS[exponent](x)
    if not math.isfinite(exponent) or exponent != int(exponent):
        return torch.pow(x, torch.full((), exponent, dtype=x.dtype, device=x.device))
    return NotImplemented if exponent >= 0 else torch.pow(x, -exponent).reciprocal()


def _product_of_itself(x: Tensor, times: int) -> Tensor:
    """By squaring."""
    if times < 0:
        return NotImplemented
    product = torch.ones_like(x)
    while times:
        product = product * x if times % 2 else product
        times //= 2
        x = x * x if times else x
    return product


def power_of(base: float, exponent: Tensor) -> Tensor:
    """base ** exponent for a number and a tensor."""
    dtype = torch.result_type(exponent, base)
    if not dtype.is_floating_point:
        return NotImplemented
    return torch.pow(torch.full((), base, dtype=dtype, device=exponent.device), exponent)


def power(a: Tensor, b: Tensor) -> Tensor:
    """C's pow, with its results for zeros, negative numbers, infinities and nan."""
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return NotImplemented
    if dtype != torch.float64:
        return _power_in_single(a, b, dtype)
    a, b = a.to(dtype), b.to(dtype)
    size, half, infinity = a.abs(), b / 2, float("inf")
    value = torch.exp(b * torch.log(size))
    limit = torch.where((size > 1) == (b > 0), infinity, 0.0).to(dtype)
    bounded = (size == 0) | (size == infinity) | (b.abs() == infinity)
    value = torch.where(bounded & (b == b) & (a == a), limit, value)
    is_whole = (b == torch.trunc(b)) & (b.abs() != infinity)
    is_odd = is_whole & (half != torch.trunc(half))
    value = torch.where(is_odd & torch.signbit(a), -value, value)
    has_none = (a < 0) & (size != infinity) & ~is_whole & (b.abs() != infinity)
    value = torch.where(has_none, float("nan"), value)
    return torch.where((b == 0) | (a == 1) | ((size == 1) & (b.abs() == infinity)), 1.0, value)


def _power_in_single(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """pow of f32 tensors of one shape, which has a formula."""
    types = {a.dtype, b.dtype}
    if types == {torch.float32} and [*map(expression, a.shape)] == [*map(expression, b.shape)]:
        return NotImplemented
    a, b = torch.broadcast_tensors(a.to(torch.float32), b.to(torch.float32))
    return torch.pow(a, b).to(dtype)


_ROOTS: dict[float, Callable[[Tensor], Tensor]] = {
    -1.0: torch.reciprocal,
    -0.5: torch.rsqrt,
    0.5: torch.sqrt,
}


def negative(x: Tensor) -> Tensor:
    """Negate integers as 0 - x: the compiler negates them as floats, which are not exact."""
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return NotImplemented
    return torch.zeros((), dtype=x.dtype, device=x.device) - x


def reciprocal(x: Tensor) -> Tensor:
    """1 / x: the compiler's reciprocal asserts that no element is 0.

    Loops with assertions are not removed as dead code, and fusing them may not terminate.
    """
    if x.is_complex():
        return NotImplemented
    dtype = torch.result_type(x, 1.0)
    return torch.full((), 1.0, dtype=dtype, device=x.device) / x.to(dtype)


def divide(a: Tensor, b: Number, *, rounding_mode: str | None) -> Tensor:
    """Division rounded towards zero or down."""
    if rounding_mode is None:
        return NotImplemented
    dtype = torch.result_type(a, b)
    a, b = a.to(dtype), _as_tensor(b, a, dtype)
    if rounding_mode == "floor":
        return torch.floor_divide(a, b)
    return torch.trunc(a / b) if dtype.is_floating_point else _divide_truncating(a, b)


def _divide_truncating(a: Tensor, b: Tensor) -> Tensor:
    """Round towards zero, from the quotient rounded down."""
    down = torch.floor_divide(a, b)
    return torch.where((down * b != a) & ((a < 0) != (b < 0)), down + 1, down)


def floor_divide(a: Tensor, b: Number) -> Tensor:
    """Division rounded down."""
    dtype = torch.result_type(a, b)
    a, divisor = a.to(dtype), _as_tensor(b, a, dtype)
    if dtype.is_floating_point:
        return _floor_divide_floats(a, divisor)
    if dtype == torch.int64:
        return _floor_divide_integers(a, divisor)
    # A number has to be wrapped as the dtype does: -1 is 255 in uint8.
    return NotImplemented if isinstance(b, Tensor) else torch.floor_divide(a, divisor)


def _floor_divide_integers(a: Tensor, b: Tensor) -> Tensor:
    """Divide in f64, as the compiler does, then divide the remainder and correct by 1."""
    divisor = b.double()
    quotient = torch.floor(a.double() / divisor).long()
    quotient = quotient + torch.floor((a - quotient * b).double() / divisor).long()
    rest = a - quotient * b
    is_large = (rest != 0) & ((rest < 0) != (b < 0))
    further = rest - b
    is_small = ~is_large & ((further == 0) | ((further < 0) == (b < 0)))
    return quotient - is_large.long() + is_small.long()


def _floor_divide_floats(a: Tensor, b: Tensor) -> Tensor:
    """PyTorch's algorithm: from the remainder, since the quotient is rounded."""
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    quotient = torch.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    whole = torch.floor(quotient)
    whole = torch.where(quotient - whole > 0.5, whole + 1, whole)
    whole = torch.where(quotient == 0, torch.copysign(torch.zeros_like(whole), a / b), whole)
    return torch.where(b == 0, a / b, whole)


def remainder(a: Tensor, b: Number) -> Tensor:
    """The remainder with the sign of the divisor."""
    dtype = torch.result_type(a, b)
    a, b = a.to(dtype), _as_tensor(b, a, dtype)
    if not dtype.is_floating_point:
        return a - torch.floor_divide(a, b) * b
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def fmod(a: Tensor, b: Number) -> Tensor:
    """The remainder with the sign of the dividend."""
    dtype = torch.result_type(a, b)
    a, b = a.to(dtype), _as_tensor(b, a, dtype)
    if not dtype.is_floating_point:
        return a - torch.div(a, b, rounding_mode="trunc") * b
    if dtype == torch.float64:
        # Large numbers are integers.
        scale = 1.0 / (1.0 + (b.abs() > 1e270).to(dtype) * 2.0**200)
        rest = _rest(a * scale, b * scale, halves(b * scale), _STEPS[dtype]) / scale
    else:
        wide = b.double()
        rest = _rest(a.double(), wide, (wide,), _STEPS[dtype]).to(dtype)
    return torch.where(a.abs() < b.abs(), a, rest)


# Steps of 25 bits for the largest quotient; f64 quotients are limited to 2**300.
_STEPS = {torch.float16: 2, torch.bfloat16: 11, torch.float32: 11, torch.float64: 12}


def _rest(a: Tensor, b: Tensor, parts: tuple[Tensor, ...], steps: int) -> Tensor:
    """The remainder, by steps that each subtract the leading bits of the quotient times b.

    A step is exact: the bits are 26, and a part of b has at most 27.
    """
    rest, inverse = a, b.reciprocal()
    for _ in range(steps):
        leading = torch.trunc(halves(rest * inverse)[0])
        for part in parts:
            rest = rest - leading * part
    # The quotient may have been rounded up.
    rest = torch.where((rest < 0) != (a < 0), rest + torch.copysign(b, a), rest)
    rest = torch.where(rest.abs() == b.abs(), torch.zeros_like(rest), rest)
    return torch.copysign(rest, a)


def _of_truth(op: Any) -> Callable[..., Tensor]:
    """`any` or `all` of numbers: the result is uint8 for uint8, otherwise bool."""

    def reduce(x: Tensor, *args: Any) -> Tensor:
        if x.dim() == 0:  # the compiler cannot reduce it
            return _truth(x != 0, x)
        return NotImplemented if x.dtype != torch.uint8 else _truth(op(x != 0, *args), x)

    return reduce


def any_along(x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The same along axes, of which there may be none."""
    if x.dim() == 0 or dim == []:
        return _truth(x != 0, x)
    if x.dtype != torch.uint8:
        return NotImplemented
    return _truth(aten.any.dims(x != 0, dim, keepdim), x)


def all_along(x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether none is zero; the dialect has no op for several axes."""
    if x.dim() == 0 or dim == []:
        return _truth(x != 0, x)
    return _truth(aten.any.dims(x == 0, dim, keepdim).logical_not(), x)


def _truth(found: Tensor, x: Tensor) -> Tensor:
    return found.to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


def _with_number(op: Any) -> Callable[..., Tensor]:
    """An op on a tensor and a number, in either order, as an op on two tensors."""

    def combine(a: Any, b: Any) -> Tensor:
        dtype, like = torch.result_type(a, b), a if isinstance(a, Tensor) else b
        result: Tensor = op(_as_tensor(a, like, dtype), _as_tensor(b, like, dtype))
        return result

    return combine


_OPS_WITH_NUMBERS = {
    aten.bitwise_and.Scalar_Tensor: aten.bitwise_and.Tensor,
    aten.bitwise_or.Scalar: aten.bitwise_or.Tensor,
    aten.bitwise_or.Scalar_Tensor: aten.bitwise_or.Tensor,
    aten.bitwise_xor.Scalar: aten.bitwise_xor.Tensor,
    aten.bitwise_xor.Scalar_Tensor: aten.bitwise_xor.Tensor,
    aten.bitwise_left_shift.Scalar_Tensor: aten.bitwise_left_shift.Tensor,
    aten.bitwise_right_shift.Scalar_Tensor: aten.bitwise_right_shift.Tensor,
    aten.remainder.Scalar_Tensor: aten.remainder.Tensor,
}


def integer_power(base: Any, exponent: Tensor) -> Tensor:
    """Integer power by repeated squaring; only 1 and -1 have negative powers."""
    dtype = torch.result_type(base, exponent)
    if dtype.is_floating_point or dtype.is_complex:
        return (power if isinstance(base, Tensor) else power_of)(base, exponent)
    base = _as_tensor(base, exponent, dtype)
    bits = 1 if exponent.dtype == torch.bool else torch.iinfo(exponent.dtype).bits
    left = exponent.to(torch.int64)
    is_odd = (left & 1) != 0
    product, square = torch.ones_like(base), base
    for bit in range(bits - 1 if exponent.dtype.is_signed else bits):
        product = torch.where(((left >> bit) & 1) != 0, product * square, product)
        square = square * square
    of_one = torch.where((base == 1) | ((base == -1) & ~is_odd), 1, torch.zeros_like(base))
    inverse = torch.where((base == -1) & is_odd, -1, of_one)
    return torch.where(left < 0, inverse, product)


def gcd(a: Tensor, b: Tensor) -> Tensor:
    """Euclid's algorithm, with the maximum number of steps for the dtype."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(dtype).abs(), b.to(dtype).abs()
    for _ in range(_EUCLID[torch.iinfo(dtype).bits]):
        rest = a - torch.floor_divide(a, b.clamp(min=1)) * b
        a, b = torch.where(b == 0, a, b), torch.where(b == 0, b, rest)
    return a


# Consecutive Fibonacci numbers take the most steps.
_EUCLID = {8: 12, 16: 23, 32: 46, 64: 91}


def lcm(a: Tensor, b: Tensor) -> Tensor:
    """The least common multiple: a / gcd * b."""
    common = torch.gcd(a, b)
    shared = torch.floor_divide(a.to(common.dtype), common.clamp(min=1))
    return (shared * b).abs()


def _as_tensor(value: Number, like: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(dtype)
    return torch.full((), value, dtype=dtype, device=like.device)


_TRUTHS = (aten.any.default, aten.any.dim, aten.all.default, aten.all.dim)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """Evenly spaced values, computed from the nearer end."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype == torch.uint8 and min(start, end) < 0:  # PyTorch converts the ends first
        ends = int(start) % 256, int(end) % 256
        return torch.linspace(*ends, steps, dtype=dtype, device=device)
    if not dtype.is_floating_point or not isinstance(steps, int) or steps < 2:
        return NotImplemented
    step = (end - start) / (steps - 1)
    if dtype == torch.float32:  # PyTorch rounds the step, and then once more at the end
        step = float(numpy.float32(step))
    place = torch.arange(steps, dtype=torch.float64, device=device)
    from_end = end - step * (steps - 1 - place)
    return torch.where(place < steps // 2, start + step * place, from_end).to(dtype)


def arange(
    start: float,
    end: float,
    step: float = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """start + step * place: the compiler's numbers have to be exact in the dtype."""
    is_float = any(isinstance(n, (float, torch.SymFloat)) for n in (start, end, step))
    if dtype is None:
        dtype = torch.get_default_dtype() if is_float else torch.int64
    if not dtype.is_floating_point or not (is_float or dtype.itemsize == 2):
        return NotImplemented
    # PyTorch computes values of 16 bits in float32.
    wide = torch.float32 if dtype.itemsize == 2 else torch.float64
    count = math.ceil((end - start) / step)
    place = torch.arange(count, dtype=torch.int64, device=device).to(wide)
    return (_rounded(start, wide) + _rounded(step, wide) * place).to(dtype)


def _rounded(number: float, dtype: torch.dtype) -> float:
    is_exact = dtype == torch.float64 or not isinstance(number, float)
    return number if is_exact else float(numpy.float32(number))


RULES: dict[Any, Callable[..., Any]] = {
    **{op: _with_number(on_tensors) for op, on_tensors in _OPS_WITH_NUMBERS.items()},
    aten.linspace.default: linspace,
    aten.arange.start_step: arange,
    **{op: _of_truth(op) for op in _TRUTHS},
    aten.any.dims: any_along,
    aten.all.dims: all_along,
    **{op: _compare(op) for op in _COMPARISONS},
    aten.eq.Tensor: equal,
    aten.pow.Tensor_Scalar: power_of_scalar,
    aten.pow.Scalar: power_of,
    aten.pow.Tensor_Tensor: power,
    aten.reciprocal.default: reciprocal,
    aten.div.Tensor_mode: divide,
    aten.div.Scalar_mode: divide,
    aten.floor_divide.default: floor_divide,
    aten.floor_divide.Scalar: floor_divide,
    aten.remainder.Tensor: remainder,
    aten.remainder.Scalar: remainder,
    aten.fmod.Tensor: fmod,
    aten.fmod.Scalar: fmod,
}

# torch.compile leaves long loops of integers to PyTorch.
EXPORTED: dict[Any, Callable[..., Any]] = {
    aten.pow.Scalar: integer_power,
    aten.pow.Tensor_Tensor: integer_power,
    aten.gcd.default: gcd,
    aten.lcm.default: lcm,
}
# An op of Inductor's that Dynamo uses in optimizer steps.
OF_PACKAGES: dict[str, Callable[..., Any]] = {"prims::fma": lambda a, b, c: a * b + c}
