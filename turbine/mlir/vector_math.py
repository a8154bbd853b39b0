"""Math functions as ops of the arith and math dialects.

Each takes f32 or f64, a scalar or a vector, with an error of at most 2 ulp for f32 and 4 for f64.
MLIR's own ops are used where they are as accurate and fast; its exp, log, sin and related ops are
not, and often lack f64.

Subnormal numbers count as zero, since compiled code flushes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

from turbine import fits
from turbine.mlir.term import Format, Operand, Term
from turbine.mlir.writer import Value, Writer

Function = Callable[..., Value]


def of_values(formula: Callable[..., Term]) -> Function:
    """Convert a formula over terms to a function of a writer and values."""

    @wraps(formula)
    def function(w: Writer, *operands: Value) -> Value:
        return formula(*(Term(w, operand) for operand in operands)).value

    return function


def of_op(op: str) -> Function:
    """A function that is a single op."""
    return lambda w, x: w.unary(op, x)


# Exponentials


def exp(x: Term) -> Term:
    """2^n exp(r) for x = n log(2) + r."""
    return _exp_of_sum(x, None)


def exp2(x: Term) -> Term:
    """2^n 2^r for x = n + r; at the limits r is zero and the exponents are those of 0 and inf."""
    limit = float(x.format.bias)
    held = x.call("arith.maximumf", -limit).call("arith.minimumf", limit + 1.0)
    # Scaling may turn the bits of nan into a number.
    return held.fma(0.0, _exp2_within(held))


def expm1(x: Term) -> Term:
    """2 (2^(n-1) (exp(r) - 1) + 2^(n-1) - 1/2): no part overflows before the result."""
    held = x.call("arith.maximumf", -40.0).call("arith.minimumf", x.format.exp_limits[1] + 0.1)
    shifted, rest = _reduce_range(held, x.format.bias - 1)
    power = _power_of_two(shifted)
    grown = (rest * rest).fma(rest.polynomial(fits.EXPONENTIAL[x.value.element]), rest)
    value = power.fma(grown, power - 0.5)
    # Halves of the smallest numbers are zero.
    return x.where(x.abs().is_("olt", 4 * x.format.tiny), value + value)


def tanh(x: Term) -> Term:
    """An odd polynomial near zero, elsewhere 1 - 2 / (exp(2 x) + 1), which reduces errors."""
    element, size = x.value.element, x.abs()
    square = x * x
    near = (x * square).fma(square.polynomial(fits.TANH_NEAR[element]), x)
    held = size.call("arith.minimumf", x.format.tanh_limit)
    offset = x.format.one_and_half + x.format.bias
    shifted = held.fma(2 * math.log2(math.e), offset)
    rest = held.fma(2 * math.log2(math.e), x.like(offset) - shifted)
    far = x.like(1.0) - x.like(2.0) / _power_of_two(shifted).fma(_two_to(rest), 1.0)
    return near.where(size.is_("ult", 0.55), far).signed_as(x)


def sigmoid(x: Term) -> Term:
    """b - b e / (1 + e) for e = exp(-|x|), where b is e or 1, to reduce errors."""
    falling = x.abs().call("arith.negf").call("arith.maximumf", x.format.exp_limits[0] - 0.6)
    shifted, rest = _reduce_range(falling, x.format.bias)
    # The exponent is zero at the lower end, and so is the power.
    small = _power_of_two(shifted) * _exponential(rest)
    base = small.where(x.is_("olt", 0.0), 1.0)
    return base.fma((small / (small + 1.0)).call("arith.negf"), base)


def _exp_of_sum(x: Term, tail: Term | None) -> Term:
    """exp(x + tail)."""
    shifted, rest = _reduce_range(x)
    if tail is not None:
        rest = rest + tail
    value = _scale(_exponential(rest), shifted)
    return _saturate(x, value, *x.format.exp_limits)


def _exp2_within(x: Term) -> Term:
    """2^x, if that is a normal number, or if it is 0 or inf and x is an integer."""
    shifted = x + x.format.one_and_half
    return _scale(_two_to(x - (shifted - x.format.one_and_half)), shifted)


def _reduce_range(x: Term, bias: int = 0) -> tuple[Term, Term]:
    """The n (in the low bits, with a bias) and the r of x = n log(2) + r."""
    high, low = fits.LOG_2[x.value.element]
    offset = x.format.one_and_half + bias
    shifted = x.fma(math.log2(math.e), offset)
    count = shifted - offset
    return shifted, count.fma(-low, count.fma(-high, x))


def _exponential(rest: Term) -> Term:
    """exp(r) for |r| <= log(2) / 2; only the last step rounds much."""
    return rest.fma(rest.polynomial((*fits.EXPONENTIAL[rest.value.element], 1.0)), 1.0)


def _two_to(rest: Term) -> Term:
    """2^r for |r| <= 1/2."""
    return rest.fma(rest.polynomial(fits.POWER_OF_TWO[rest.value.element]), 1.0)


def _power_of_two(shifted: Term) -> Term:
    """2^n for an n in the low bits, with the bias of the format."""
    return (shifted.bits() << shifted.format.fraction).as_float(shifted.value.element)


def _scale(x: Term, shifted: Term) -> Term:
    """x 2^n by adding to the exponent, which also works if 2^n would overflow."""
    exponent = shifted.bits() << x.format.fraction
    return (x.bits() + exponent).as_float(x.value.element)


def _saturate(x: Term, value: Term, low: float, high: float) -> Term:
    """Limit a monotonic function: 0 below `low`, inf from `high` on, nan for nan."""
    finite = value.where(x.is_("olt", high), x + math.inf)
    return x.like(0.0).where(x.is_("olt", low), finite)


# Logarithms


def log(x: Term) -> Term:
    """n log(2) + log(m) for x = 2^n m."""
    count, fraction = _count_and_fraction(x)
    return _positive(x, _natural(count, _log_near_one(fraction)))


def log2(x: Term) -> Term:
    """n + log(m) / log(2) for x = 2^n m."""
    count, fraction = _count_and_fraction(x)
    near, (high, low) = _log_near_one(fraction), fits.LOG2_E[x.value.element]
    return _positive(x, near.fma(high, near.fma(low, count)))


def log1p(x: Term) -> Term:
    """The logarithm of the rounded sum 2^n m, with the rounding error added to m."""
    total = x + 1.0
    lost = (x - (total - 1.0)).where(total.is_("olt", 2.0), x.like(1.0) - (total - x))
    count, fraction = _count_and_fraction(total)
    # 2^-n; for the largest n the rounding error does not matter.
    places = count.call("arith.minimumf", 100.0) * -1.0 + (x.format.one_and_half + x.format.bias)
    power = (places.bits() << x.format.fraction).as_float(x.value.element)
    value = _natural(count, _log_near_one(lost.fma(power, fraction)))
    return x.where(x.abs().is_("olt", x.format.tiny), _positive(total, value))


def _count_and_fraction(x: Term) -> tuple[Term, Term]:
    """The n and the m - 1 of x = 2^n m, with sqrt(1/2) <= m < sqrt(2)."""
    root = _root_bits(x.format)
    moved = x.bits() - root
    fraction = (moved & (2**x.format.fraction - 1)) + root
    count = (moved >> x.format.fraction).to("arith.sitofp", x.value.element)
    return count, fraction.as_float(x.value.element) - 1.0


def _log_near_one(f: Term) -> Term:
    """log(1 + f) = 2 atanh(s) for s = f / (2 + f), as f - f^2/2 + s (f^2/2 + ...)."""
    s = f / (f + 2.0)
    square, half = s * s, f * f * 0.5
    rest = square * square.polynomial(fits.LOGARITHM[f.value.element])
    return f - (half - s * (half + rest))


def _natural(count: Term, near: Term) -> Term:
    high, low = fits.LOG_2[near.value.element]
    return count.fma(high, count.fma(low, near))


def _positive(x: Term, value: Term) -> Term:
    """Select the logarithm of inf, nan, zero and negative numbers."""
    value = value.where(x.is_("olt", math.inf), x)
    value = x.like(-math.inf).where(x.is_("olt", x.format.tiny), value)
    return x.like(math.nan).where(x.is_("ult", 0.0), value)


def _root_bits(format: Format) -> int:
    """The bits of sqrt(1/2), about."""
    exponent = (format.bias - 1) << format.fraction
    return exponent + int((math.sqrt(2) - 1) * 2**format.fraction)


# Sine and cosine


def sin(x: Term) -> Term:
    """Sine, by quadrant."""
    return x.where(x.is_("oeq", 0.0), _by_quadrant(x, 0))


def cos(x: Term) -> Term:
    """Cosine: the sine of the next quadrant."""
    return _by_quadrant(x, 1)


def _by_quadrant(x: Term, ahead: int) -> Term:
    element, format = x.value.element, x.format
    quadrant, rest = _QUADRANTS[element](x.to("arith.extf", "f64"))
    quadrant = (quadrant + ahead).to("arith.trunci", format.bits)
    rest = rest.to("arith.truncf", element)
    square = rest * rest
    sine = (rest * square).fma(square.polynomial(fits.SINE[element]), rest)
    cosine = (square * square).fma(square.polynomial(fits.COSINE[element]), square.fma(-0.5, 1.0))
    value = sine.where((quadrant & 1).is_("eq", 0), cosine)
    sign = (quadrant & 2) << (format.width - 2)
    return (value.bits() ^ sign).as_float(element)


def _quadrant_of_single(x: Term) -> tuple[Term, Term]:
    """The n (in the low bits) and the r of x = n pi/2 + r, for an x of 24 bits.

    From 2^49 on, x is a multiple of 2^26, so that 2^26 may be replaced by what it is modulo 2 pi.
    """
    size, scale, turn, tail = x.abs(), x.like(1.0), x.like(1.0), x.like(0.0)
    for power, (modulo, modulo_tail) in fits.POWERS_MODULO_TURN.items():
        is_less = size.is_("olt", 2.0 ** (power + 23))
        scale = scale.where(is_less, 2.0**-power)
        turn, tail = turn.where(is_less, modulo), tail.where(is_less, modulo_tail)
    multiple = x * scale
    angle = multiple * turn
    rounded_off = multiple.fma(tail, multiple.fma(turn, angle * -1.0))
    first, rest = _quadrant_and_rest(angle)
    second, rest = _quadrant_and_rest(rest + rounded_off)
    return first + second, rest


def _quadrant_of_double(x: Term) -> tuple[Term, Term]:
    """The n (in the low bits) and the r of x = n pi/2 + r; those of 0 if x is too large."""
    return _quadrant_and_rest(x.where(x.abs().is_("olt", 2.0**45), x * 0.0))


_QUADRANTS = {"f32": _quadrant_of_single, "f64": _quadrant_of_double}


def _quadrant_and_rest(x: Term) -> tuple[Term, Term]:
    shifted = x.fma(2 / math.pi, x.format.one_and_half)
    count, rest = shifted - x.format.one_and_half, x
    for part in fits.HALF_PI:
        rest = count.fma(-part, rest)
    return shifted.bits(), rest


# The error function


def erf(x: Term) -> Term:
    """Error function; |x| is limited to where it rounds to 1."""
    size = x.abs().call("arith.minimumf", x.format.erf_limit)
    return _ERRORS[x.value.element](x, size)


def _erf_in_single(x: Term, size: Term) -> Term:
    """For the polynomial t = 4 - 4 erfc(x)^(1/4), t - t^2 / 8 is 2 - 2 erfc(x)^(1/2), and so on.

    Near 0 this is as accurate as t, near 1 more so: each step squares the error of 1 - erf.
    """
    # (t - x) / unit: the highest coefficient becomes 1, and the value is never subnormal.
    unit = fits.ERF_ROOT[0]
    beyond = size * size.polynomial(tuple(factor / unit for factor in fits.ERF_ROOT))
    fourth = beyond.fma(unit, size)
    # From `beyond`, since `fourth` is rounded.
    second = fourth.fma(fourth * (-0.125 / unit), beyond).fma(unit, size)
    return second.fma(second * -0.25, second).signed_as(x)


def _erf_in_double(x: Term, size: Term) -> Term:
    """An odd polynomial near zero, elsewhere 1 - 2^p for a polynomial p."""
    near = x.fma((x * x).polynomial(fits.ERF_NEAR), x)
    far = x.like(1.0) - _exp2_within(size.polynomial(fits.ERF_FAR))
    return near.where(size.is_("ult", 0.9), far.signed_as(x))


# Integers


def round_to_even(x: Term) -> Term:
    """Add and subtract a number that leaves no fraction bits; large numbers are integers."""
    size, limit = x.abs(), 2.0**x.format.fraction
    value = ((size + limit) - limit).signed_as(x)
    return value.where(size.is_("olt", limit), x)


# Powers


def power(x: Term, y: Term) -> Term:
    """exp(y log|x|) with the sign and the special cases of C's pow."""
    element = x.value.element
    wide_x, wide_y = x.to("arith.extf", "f64"), y.to("arith.extf", "f64")
    size = _exp_of_sum(*_PRODUCTS[element](wide_x.abs(), wide_y)).to("arith.truncf", element)
    whole = y.is_("oeq", y.call("math.floor"))
    half = y * 0.5
    odd = whole & half.is_("one", half.call("math.floor"))
    value = size.signed_as(x).where(odd, size)
    is_undefined = x.is_("olt", 0.0) & x.is_("ogt", -math.inf) & y.is_("one", y.call("math.floor"))
    value = x.like(math.nan).where(is_undefined, value)
    of_minus_one = x.is_("oeq", -1.0) & y.abs().is_("oeq", math.inf)
    value = x.like(1.0).where(of_minus_one, value)
    value = x.like(1.0).where(x.is_("oeq", 1.0), value)
    return x.like(1.0).where(y.is_("oeq", 0.0), value)


def _product_in_single(x: Term, y: Term) -> tuple[Term, None]:
    """y log(x) in f64, which is enough for f32."""
    return y * log(x), None


def _product_in_double(x: Term, y: Term) -> tuple[Term, Term]:
    """y log(x) as a sum of two f64."""
    high, low = _log_as_sum(x)
    high = _positive(x, high)
    product = y * high
    rest = y.fma(low, y.fma(high, product * -1.0))
    return product, rest.where(product.abs().is_("olt", 1e4), 0.0)


def _log_as_sum(x: Term) -> tuple[Term, Term]:
    """log(x) to about 66 bits: n log(2) + 2 s + 2/3 s^3 + ..., in double-double except the tail."""
    count, f = _count_and_fraction(x)
    s_high, s_low = _quotient(f, f + 2.0, f - ((f + 2.0) - 2.0))
    z_high, z_low = _product(s_high, s_low, s_high, s_low)
    tail = z_high * z_high.polynomial(fits.LOGARITHM_TAIL)
    third_high, third_low = _sum(x.like(fits.TWO_THIRDS[0]), tail, fits.TWO_THIRDS[1])
    cubic = _product(z_high, z_low, third_high, third_low)
    two_high, two_low = _sum(x.like(2.0), cubic[0], cubic[1])
    near = _product(s_high, s_low, two_high, two_low)
    start = count * fits.LOG_2_SHORT[0]
    high, low = _sum(start, near[0], near[1])
    return _sum(high, count.fma(fits.LOG_2_SHORT[1], low), 0.0)


def _quotient(x: Term, y: Term, y_low: Term) -> tuple[Term, Term]:
    """x / (y + y_low) as a sum of two numbers."""
    high = x / y
    rest = high.fma(y * -1.0, x) - high * y_low
    return high, rest / y


def _product(x: Term, x_low: Term, y: Term, y_low: Term) -> tuple[Term, Term]:
    high = x * y
    return high, x.fma(y_low, x_low.fma(y, x.fma(y, high * -1.0)))


def _sum(x: Term, y: Term, low: Operand) -> tuple[Term, Term]:
    """x + y + low as a sum of two numbers, in any order of magnitude."""
    high = x + y
    other = high - x
    lost = (x - (high - other)) + (y - other)
    return high, lost + low


_PRODUCTS: dict[str, Callable[[Term, Term], tuple[Term, Term | None]]] = {
    "f32": _product_in_single,
    "f64": _product_in_double,
}

_ERRORS: dict[str, Callable[[Term, Term], Term]] = {
    "f32": _erf_in_single,
    "f64": _erf_in_double,
}

FUNCTIONS: dict[str, Function] = {
    "exp": of_values(exp),
    "exp2": of_values(exp2),
    "expm1": of_values(expm1),
    "log": of_values(log),
    "log2": of_values(log2),
    "log1p": of_values(log1p),
    "sqrt": of_op("math.sqrt"),
    "rsqrt": of_op("math.rsqrt"),
    "tanh": of_values(tanh),
    "sigmoid": of_values(sigmoid),
    "sin": of_values(sin),
    "cos": of_values(cos),
    "erf": of_values(erf),
    "abs": of_op("math.absf"),
    "floor": of_op("math.floor"),
    "ceil": of_op("math.ceil"),
    "round": of_values(round_to_even),
    "trunc": of_op("math.trunc"),
    "pow": of_values(power),
}
