"""Functions of real numbers as ops of the arith and math dialects: a value in, a value out.

Each takes f32 or f64, one number or a vector of them, and is right to 2 units in the last place of
f32 and 4 of f64. What MLIR has is used where it is as accurate and as fast; what it has for the
exponential, the logarithm, sine and their relatives is neither, and of f64 often missing.

Subnormal numbers count as zero, as compiled code takes them for zero anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from turbine.kernel.backends.iree.writer import Value, Writer

Function = Callable[..., Value]


@dataclass(frozen=True)
class Format:
    """How numbers of a type are laid out in bits, and where functions of them end."""

    bits: str
    width: int
    fraction: int
    bias: int
    tiny: float
    # Up from the first exp is at least tiny; from the second it overflows.
    exp_limits: tuple[float, float]
    # From here on tanh and erf round to one.
    tanh_limit: float
    erf_limit: float

    @property
    def one_and_half(self) -> float:
        """What, added to a small number, leaves its nearest integer in the lowest bits."""
        return 1.5 * 2.0**self.fraction


FORMATS = {
    "f32": Format("i32", 32, 23, 127, 2.0**-126, (-87.33654475, 88.72283935), 9.1, 3.95),
    "f64": Format(
        "i64", 64, 52, 1023, 2.0**-1022, (-708.3964185322641, 709.7827128933841), 19.1, 5.95
    ),
}


# Formulas


@dataclass(frozen=True)
class Term:
    """A value that formulas are written with; numbers become constants of its type."""

    writer: Writer
    value: Value

    @property
    def format(self) -> Format:
        """The layout of this type of number."""
        return FORMATS[self.value.element]

    def like(self, other: Operand) -> Term:
        """A number as a constant of this type."""
        if isinstance(other, Term):
            return other
        return self._of(self.writer.constant(other, self.value.element, self.value.lanes))

    def __add__(self, other: Operand) -> Term:
        return self._binary("add", other)

    def __sub__(self, other: Operand) -> Term:
        return self._binary("sub", other)

    def __mul__(self, other: Operand) -> Term:
        return self._binary("mul", other)

    def __truediv__(self, other: Operand) -> Term:
        return self._binary("div", other)

    def __and__(self, other: Operand) -> Term:
        return self._of(self.writer.binary("arith.andi", self.value, self.like(other).value))

    def __xor__(self, other: Operand) -> Term:
        return self._of(self.writer.binary("arith.xori", self.value, self.like(other).value))

    def __lshift__(self, other: int) -> Term:
        return self._of(self.writer.binary("arith.shli", self.value, self.like(other).value))

    def __rshift__(self, other: int) -> Term:
        return self._of(self.writer.binary("arith.shrsi", self.value, self.like(other).value))

    def fma(self, factor: Operand, addend: Operand) -> Term:
        """self * factor + addend, rounded once."""
        operands = f"{self.value}, {self.like(factor).value}, {self.like(addend).value}"
        element, lanes = self.value.element, self.value.lanes
        return self._of(
            self.writer.emit(f"math.fma {operands} : {self.value.type}", element, lanes)
        )

    def polynomial(self, coefficients: tuple[float, ...]) -> Term:
        """Highest power first; Horner's scheme over pairs, a chain of half the length."""
        square, low, high = self * self, coefficients[::-1][0::2], coefficients[::-1][1::2]
        pairs = [self.fma(second, first) for first, second in zip(low, high, strict=False)]
        value = pairs.pop() if len(low) == len(high) else self.like(low[-1])
        for pair in reversed(pairs):
            value = value.fma(square, pair)
        return value

    def call(self, op: str, *others: Operand) -> Term:
        """An op of the math or arith dialect."""
        if not others:
            return self._of(self.writer.unary(op, self.value))
        return self._of(self.writer.binary(op, self.value, self.like(others[0]).value))

    def abs(self) -> Term:
        """The size."""
        return self.call("math.absf")

    def signed_as(self, other: Term) -> Term:
        """The size of this one with the sign of another."""
        return self.call("math.copysign", other)

    def is_(self, predicate: str, other: Operand) -> Term:
        """A comparison by a predicate of arith.cmpf or arith.cmpi."""
        op = "arith.cmpf" if self._is_float else "arith.cmpi"
        return self._of(self.writer.compare(op, predicate, self.value, self.like(other).value))

    def where(self, condition: Term, otherwise: Operand) -> Term:
        """This one where a condition holds, else another."""
        other = self.like(otherwise).value
        return self._of(self.writer.select(condition.value, self.value, other))

    def bits(self) -> Term:
        """The layout of a float as an integer."""
        return self._of(self.writer.convert("arith.bitcast", self.value, self.format.bits))

    def as_float(self, element: str) -> Term:
        """The float of these bits."""
        return self._of(self.writer.convert("arith.bitcast", self.value, element))

    def to(self, op: str, element: str) -> Term:
        """A conversion, if the type is not this one already."""
        if self.value.element == element:
            return self
        return self._of(self.writer.convert(op, self.value, element))

    @property
    def _is_float(self) -> bool:
        return self.value.element in FORMATS

    def _binary(self, name: str, other: Operand) -> Term:
        return self.call(f"arith.{name}{'f' if self._is_float else 'i'}", other)

    def _of(self, value: Value) -> Term:
        return Term(self.writer, value)


Operand = Term | float


def of_values(formula: Callable[..., Term]) -> Function:
    """A formula over terms as a function of a writer and its values."""

    @wraps(formula)
    def function(w: Writer, *operands: Value) -> Value:
        return formula(*(Term(w, operand) for operand in operands)).value

    return function


def of_op(op: str) -> Function:
    """An op of one operand that is right as it is."""
    return lambda w, x: w.unary(op, x)


# Exponentials


def exp(x: Term) -> Term:
    """2^n exp(r), where x is n log(2) + r."""
    return _exp_of_sum(x, None)


def exp2(x: Term) -> Term:
    """2^n 2^r, where x is n + r."""
    limit = float(x.format.bias)
    return _held(x, _exp2_within(x), 1.0 - limit, 1.0 + limit)


def expm1(x: Term) -> Term:
    """2 (2^(n-1) (exp(r) - 1) + 2^(n-1) - 1/2), whose parts stay finite as long as the whole."""
    held = x.call("arith.maximumf", -40.0).call("arith.minimumf", x.format.exp_limits[1] + 0.1)
    shifted, rest = _counted(held, x.format.bias - 1)
    power = _power_of_two(shifted)
    grown = (rest * rest).fma(rest.polynomial(_EXPONENTIAL[x.value.element]), rest)
    value = power.fma(grown, power - 0.5)
    # Halves of the smallest numbers are zero.
    return x.where(x.abs().is_("olt", 4 * x.format.tiny), value + value)


def tanh(x: Term) -> Term:
    """An odd polynomial near zero; from there 1 - 2 / (exp(2 x) + 1), where errors shrink."""
    element, size = x.value.element, x.abs()
    square = x * x
    near = (x * square).fma(square.polynomial(_TANH_NEAR[element]), x)
    held = size.call("arith.minimumf", x.format.tanh_limit)
    offset = x.format.one_and_half + x.format.bias
    shifted = held.fma(2 * math.log2(math.e), offset)
    rest = held.fma(2 * math.log2(math.e), x.like(offset) - shifted)
    far = x.like(1.0) - x.like(2.0) / _power_of_two(shifted).fma(_two_to(rest), 1.0)
    return near.where(size.is_("ult", 0.55), far).signed_as(x)


def sigmoid(x: Term) -> Term:
    """b - b e / (1 + e) of e = exp(-|x|), where b is e or 1: errors of the quotient shrink."""
    falling = x.abs().call("arith.negf").call("arith.maximumf", x.format.exp_limits[0] - 0.6)
    shifted, rest = _counted(falling, x.format.bias)
    # The exponent is zero at the lower end, and so is the power.
    small = _power_of_two(shifted) * _exponential(rest)
    base = small.where(x.is_("olt", 0.0), 1.0)
    return base.fma((small / (small + 1.0)).call("arith.negf"), base)


def _exp_of_sum(x: Term, tail: Term | None) -> Term:
    """exp(x), or of x with a small number added to it."""
    shifted, rest = _counted(x)
    if tail is not None:
        rest = rest + tail
    value = _scaled(_exponential(rest), shifted)
    return _held(x, value, *x.format.exp_limits)


def _exp2_within(x: Term) -> Term:
    """2^x where that is a normal number."""
    shifted = x + x.format.one_and_half
    return _scaled(_two_to(x - (shifted - x.format.one_and_half)), shifted)


def _counted(x: Term, bias: int = 0) -> tuple[Term, Term]:
    """The n (in the lowest bits, with a bias) and the r of x = n log(2) + r."""
    high, low = _LOG_2[x.value.element]
    offset = x.format.one_and_half + bias
    shifted = x.fma(math.log2(math.e), offset)
    count = shifted - offset
    return shifted, count.fma(-low, count.fma(-high, x))


def _exponential(rest: Term) -> Term:
    """exp(r) for |r| up to log(2) / 2, whose last step is the only one that rounds much."""
    return rest.fma(rest.polynomial((*_EXPONENTIAL[rest.value.element], 1.0)), 1.0)


def _two_to(rest: Term) -> Term:
    """2^r for |r| up to 1/2."""
    return rest.fma(rest.polynomial(_POWER_OF_TWO[rest.value.element]), 1.0)


def _power_of_two(shifted: Term) -> Term:
    """2^n of an n that is in the lowest bits, with the bias of the type."""
    return (shifted.bits() << shifted.format.fraction).as_float(shifted.value.element)


def _scaled(x: Term, shifted: Term) -> Term:
    """x 2^n by adding to the exponent, which has room for an n whose power would overflow."""
    exponent = shifted.bits() << x.format.fraction
    return (x.bits() + exponent).as_float(x.value.element)


def _held(x: Term, value: Term, low: float, high: float) -> Term:
    """A growing function of x: zero below a limit, infinite from another on, nan of nan."""
    finite = value.where(x.is_("olt", high), x + math.inf)
    return x.like(0.0).where(x.is_("olt", low), finite)


# Logarithms


def log(x: Term) -> Term:
    """n log(2) + log(m), where x is 2^n m."""
    count, fraction = _count_and_fraction(x)
    return _positive(x, _natural(count, _log_near_one(fraction)))


def log2(x: Term) -> Term:
    """n + log(m) / log(2), where x is 2^n m."""
    count, fraction = _count_and_fraction(x)
    near, (high, low) = _log_near_one(fraction), _LOG2_E[x.value.element]
    return _positive(x, near.fma(high, near.fma(low, count)))


def log1p(x: Term) -> Term:
    """The logarithm of the rounded sum, whose m gets back what rounding took."""
    total = x + 1.0
    lost = (x - (total - 1.0)).where(total.is_("olt", 2.0), x.like(1.0) - (total - x))
    count, fraction = _count_and_fraction(total)
    # 2^-n; of the largest n nothing is lost that counts.
    places = count.call("arith.minimumf", 100.0) * -1.0 + (x.format.one_and_half + x.format.bias)
    power = (places.bits() << x.format.fraction).as_float(x.value.element)
    value = _natural(count, _log_near_one(lost.fma(power, fraction)))
    return x.where(x.abs().is_("olt", x.format.tiny), _positive(total, value))


def _count_and_fraction(x: Term) -> tuple[Term, Term]:
    """The n and the m - 1 of x = 2^n m, with m from the root of 1/2 to that of 2."""
    root = _root_bits(x.format)
    moved = x.bits() - root
    fraction = (moved & (2**x.format.fraction - 1)) + root
    count = (moved >> x.format.fraction).to("arith.sitofp", x.value.element)
    return count, fraction.as_float(x.value.element) - 1.0


def _log_near_one(f: Term) -> Term:
    """log(1 + f) = 2 atanh(s) of s = f / (2 + f), as f - f^2/2 + s (f^2/2 + ...)."""
    s = f / (f + 2.0)
    square, half = s * s, f * f * 0.5
    rest = square * square.polynomial(_LOGARITHM[f.value.element])
    return f - (half - s * (half + rest))


def _natural(count: Term, near: Term) -> Term:
    high, low = _LOG_2[near.value.element]
    return count.fma(high, count.fma(low, near))


def _positive(x: Term, value: Term) -> Term:
    """What a logarithm is of numbers that are not positive and finite."""
    value = value.where(x.is_("olt", math.inf), x)
    value = x.like(-math.inf).where(x.is_("olt", x.format.tiny), value)
    return x.like(math.nan).where(x.is_("ult", 0.0), value)


def _root_bits(format: Format) -> int:
    """The bits of the square root of 1/2, up to those that do not matter."""
    exponent = (format.bias - 1) << format.fraction
    return exponent + int((math.sqrt(2) - 1) * 2**format.fraction)


# Sine and cosine


def sin(x: Term) -> Term:
    """Sine by quadrant."""
    return x.where(x.is_("oeq", 0.0), _by_quadrant(x, 0))


def cos(x: Term) -> Term:
    """Cosine: a sine one quadrant on."""
    return _by_quadrant(x, 1)


def _by_quadrant(x: Term, ahead: int) -> Term:
    element, format = x.value.element, x.format
    quadrant, rest = _quadrant_and_rest(x.to("arith.extf", "f64"))
    quadrant = (quadrant + ahead).to("arith.trunci", format.bits)
    rest = rest.to("arith.truncf", element)
    square = rest * rest
    sine = (rest * square).fma(square.polynomial(_SINE[element]), rest)
    cosine = (square * square).fma(square.polynomial(_COSINE[element]), square.fma(-0.5, 1.0))
    value = sine.where((quadrant & 1).is_("eq", 0), cosine)
    sign = (quadrant & 2) << (format.width - 2)
    return (value.bits() ^ sign).as_float(element)


def _quadrant_and_rest(x: Term) -> tuple[Term, Term]:
    """The n (in the lowest bits) and the r of x = n pi/2 + r; those of 0 for what is too large."""
    held = x.where(x.abs().is_("olt", 2.0**45), x * 0.0)
    shifted = held.fma(2 / math.pi, x.format.one_and_half)
    count, rest = shifted - x.format.one_and_half, held
    for part in _HALF_PI:
        rest = count.fma(-part, rest)
    return shifted.bits(), rest


# The error function


def erf(x: Term) -> Term:
    """An odd polynomial near zero; from there one minus a power of two of a polynomial."""
    element, size = x.value.element, x.abs()
    near = x.fma((x * x).polynomial(_ERF_NEAR[element]), x)
    held = size.call("arith.minimumf", x.format.erf_limit)
    far = x.like(1.0) - _exp2_within(held.polynomial(_ERF_FAR[element]))
    return near.where(size.is_("ult", 0.9), far.signed_as(x))


# Integers


def round_to_even(x: Term) -> Term:
    """Adding and taking away what leaves no room for a fraction; large numbers have none."""
    size, room = x.abs(), 2.0**x.format.fraction
    value = ((size + room) - room).signed_as(x)
    return value.where(size.is_("olt", room), x)


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
    rootless = x.is_("olt", 0.0) & x.is_("ogt", -math.inf) & y.is_("one", y.call("math.floor"))
    value = x.like(math.nan).where(rootless, value)
    of_minus_one = x.is_("oeq", -1.0) & y.abs().is_("oeq", math.inf)
    value = x.like(1.0).where(of_minus_one, value)
    value = x.like(1.0).where(x.is_("oeq", 1.0), value)
    return x.like(1.0).where(y.is_("oeq", 0.0), value)


def _product_in_single(x: Term, y: Term) -> tuple[Term, None]:
    """y log(x), of which f32 needs no more than f64 has."""
    return y * log(x), None


def _product_in_double(x: Term, y: Term) -> tuple[Term, Term]:
    """y log(x) as the sum of two numbers."""
    high, low = _log_as_sum(x)
    high = _positive(x, high)
    product = y * high
    rest = y.fma(low, y.fma(high, product * -1.0))
    return product, rest.where(product.abs().is_("olt", 1e4), 0.0)


def _log_as_sum(x: Term) -> tuple[Term, Term]:
    """log(x) to about 66 bits: n log(2) + 2 s + 2/3 s^3 + ..., all but the last exact in two."""
    count, f = _count_and_fraction(x)
    s_high, s_low = _quotient(f, f + 2.0, f - ((f + 2.0) - 2.0))
    z_high, z_low = _product(s_high, s_low, s_high, s_low)
    tail = z_high * z_high.polynomial(_LOGARITHM_TAIL)
    third_high, third_low = _sum(x.like(_TWO_THIRDS[0]), tail, _TWO_THIRDS[1])
    cubic = _product(z_high, z_low, third_high, third_low)
    two_high, two_low = _sum(x.like(2.0), cubic[0], cubic[1])
    near = _product(s_high, s_low, two_high, two_low)
    start = count * _LOG_2_SHORT[0]
    high, low = _sum(start, near[0], near[1])
    return _sum(high, count.fma(_LOG_2_SHORT[1], low), 0.0)


def _quotient(x: Term, y: Term, y_low: Term) -> tuple[Term, Term]:
    """x / (y + y_low) as the sum of two numbers."""
    high = x / y
    rest = high.fma(y * -1.0, x) - high * y_low
    return high, rest / y


def _product(x: Term, x_low: Term, y: Term, y_low: Term) -> tuple[Term, Term]:
    high = x * y
    return high, x.fma(y_low, x_low.fma(y, x.fma(y, high * -1.0)))


def _sum(x: Term, y: Term, low: Operand) -> tuple[Term, Term]:
    """x + y + low as the sum of two numbers, whichever is larger."""
    high = x + y
    other = high - x
    lost = (x - (high - other)) + (y - other)
    return high, lost + low


_PRODUCTS: dict[str, Callable[[Term, Term], tuple[Term, Term | None]]] = {
    "f32": _product_in_single,
    "f64": _product_in_double,
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


# log(2), 1 / log(2) and pi / 2 as sums of numbers of the type.
_LOG_2 = {
    "f32": (0.6931471824645996, -1.9046542121259336e-09),
    "f64": (0.6931471805599453, 2.3190468138462996e-17),
}
_LOG2_E = {
    "f32": (1.4426950216293335, 1.925963033500011e-08),
    "f64": (1.4426950408889634, 2.0355273740931033e-17),
}
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
# The first has room for the product with an exponent.
_LOG_2_SHORT = (0.6931471805598903, 5.497923018708371e-14)
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)

# (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2.
_EXPONENTIAL = {
    "f32": (
        0.0013950454303994775,
        0.0083689009770751,
        0.04166620597243309,
        0.166665181517601,
        0.5,
    ),
    "f64": (
        2.5115375616730874e-08,
        2.763133590116909e-07,
        2.7557224486810008e-06,
        2.480148977015794e-05,
        0.00019841269907731621,
        0.0013888888947205995,
        0.00833333333331197,
        0.04166666666651454,
        0.1666666666666669,
        0.5000000000000013,
    ),
}

# (2^r - 1) / r for |r| <= 1/2.
_POWER_OF_TWO = {
    "f32": (
        0.00015473447274416685,
        0.0013400422176346183,
        0.00961801502853632,
        0.05550327152013779,
        0.24022650718688965,
        0.6931471824645996,
    ),
    "f64": (
        4.4573786920443116e-10,
        7.073868848449243e-09,
        1.017804652529961e-07,
        1.321543476752578e-06,
        1.5252733867358366e-05,
        0.00015403530458177775,
        0.0013333558146379283,
        0.009618129107593252,
        0.05550410866482174,
        0.24022650695910133,
        0.6931471805599453,
    ),
}

# (tanh(x) - x) / x^3 in x^2, for |x| <= 0.55.
_TANH_NEAR = {
    "f32": (
        -0.0062823169864714146,
        0.021077638491988182,
        -0.053853824734687805,
        0.13332600891590118,
        -0.33333319425582886,
    ),
    "f64": (
        -1.9520720535840726e-05,
        8.335955237884411e-05,
        -0.00023341235177444446,
        0.0005884568933252028,
        -0.001455545943863285,
        0.003592092525809827,
        -0.008863232652054638,
        0.021869488389052196,
        -0.053968253963876445,
        0.13333333333326827,
        -0.333333333333333,
    ),
}

# (2 atanh(s) - 2 s) / s^3 in s^2, for the s of |log| <= log(2) / 2.
_LOGARITHM = {
    "f32": (
        0.2987181544303894,
        0.3997753858566284,
        0.6666677594184875,
    ),
    "f64": (
        0.14795982255572554,
        0.15314047029735897,
        0.18183564477154604,
        0.22222198569938584,
        0.2857142874242387,
        0.3999999999941448,
        0.6666666666666734,
    ),
}

# (sin(r) - r) / r^3 in r^2, for |r| <= pi / 4.
_SINE = {
    "f32": (
        -0.00019516631436999887,
        0.008332173340022564,
        -0.16666655242443085,
    ),
    "f64": (
        1.5896499484145448e-10,
        -2.5050753159596258e-08,
        2.755731366129635e-06,
        -0.0001984126982972264,
        0.00833333333332231,
        -0.16666666666666632,
    ),
}

# (cos(r) - 1 + r^2 / 2) / r^4 in r^2, for |r| <= pi / 4.
_COSINE = {
    "f32": (
        2.443768607918173e-05,
        -0.001388736069202423,
        0.04166664555668831,
    ),
    "f64": (
        -1.1359441087745987e-11,
        2.0875719400218343e-09,
        -2.7557314324756903e-07,
        2.480158728939004e-05,
        -0.0013888888888873982,
        0.0416666666666666,
    ),
}

# erf(x) / x - 1 in x^2, for |x| <= 0.9.
_ERF_NEAR = {
    "f32": (
        -0.0006111239199526608,
        0.005016217473894358,
        -0.026781950145959854,
        0.11282229423522949,
        -0.3761253356933594,
        0.12837915122509003,
    ),
    "f64": (
        -8.49767936699256e-10,
        1.4053122803672028e-08,
        -1.6276842297511676e-07,
        1.6455363063053805e-06,
        -1.4925309852442536e-05,
        0.0001205532148297301,
        -0.0008548326767265634,
        0.005223977621818977,
        -0.026866170644828654,
        0.11283791670953819,
        -0.3761263890318373,
        0.1283791670955126,
    ),
}

# log2(erfc(x)) for x from 0.9 to where erf rounds to one.
_ERF_FAR = {
    "f32": (
        -0.001805649371817708,
        0.02247592993080616,
        -0.1314428299665451,
        -0.938841700553894,
        -1.6160932779312134,
        -0.002709049731492996,
    ),
    "f64": (
        1.948234576307951e-12,
        -8.719104741801239e-11,
        1.8272088763047895e-09,
        -2.3806134150453504e-08,
        2.1564951622421335e-07,
        -1.4357975946208962e-06,
        7.2107542360452655e-06,
        -2.732638259932403e-05,
        7.498571743939174e-05,
        -0.0001243045967533003,
        -2.326153468882623e-05,
        0.0008651045851994542,
        -0.002483591310385317,
        0.00034350902195484103,
        0.027565584651342085,
        -0.1482538120285201,
        -0.9184535138830119,
        -1.6279059367402413,
        -1.0282332490662397e-07,
    ),
}

# (2 atanh(s) - 2 s - 2 s^3 / 3) / s^5 in s^2.
_LOGARITHM_TAIL = (
    0.11988918712077214,
    0.11674828961655463,
    0.13336316956950942,
    0.15384556881305672,
    0.18181818870195277,
    0.22222222217537096,
    0.2857142857144511,
    0.3999999999999998,
)
