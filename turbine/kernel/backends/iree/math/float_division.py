"""Remainder and floor division of floats, exact for any quotient."""

from __future__ import annotations

from turbine.mlir.writer import Value, Writer

# The bits of a float and of its mantissa.
_WIDTHS = {"f32": (32, 23), "f64": (64, 52)}


def remainder(w: Writer, x: Value, y: Value) -> Value:
    """The remainder of floor division; it has the sign of y."""
    rest = emit_remainder(w, x, y)
    return w.select(_signs_differ(w, rest, y), w.binary("arith.addf", rest, y), rest)


def floor_divide(w: Writer, x: Value, y: Value) -> Value:
    """torch.floor_divide: exact, with the sign of x / y where the result is zero."""
    lanes = x.lanes
    zero, one = (w.constant(number, x.element, lanes) for number in (0.0, 1.0))
    rest = emit_remainder(w, x, y)
    quotient = w.binary("arith.divf", w.binary("arith.subf", x, rest), y)
    lowered = w.binary("arith.subf", quotient, one)
    quotient = w.select(_signs_differ(w, rest, y), lowered, quotient)
    floor = w.unary("math.floor", quotient)
    gap = w.binary("arith.subf", quotient, floor)
    is_wide = w.compare("arith.cmpf", "ogt", gap, w.constant(0.5, x.element, lanes))
    whole = w.select(is_wide, w.binary("arith.addf", floor, one), floor)
    plain = w.binary("arith.divf", x, y)
    signed = w.emit(f"math.copysign {zero}, {plain} : {x.type}", x.element, lanes)
    is_zero = w.compare("arith.cmpf", "oeq", quotient, zero)
    by_zero = w.compare("arith.cmpf", "oeq", y, zero)
    return w.select(by_zero, plain, w.select(is_zero, signed, whole))


def _signs_differ(w: Writer, rest: Value, y: Value) -> Value:
    """Whether a remainder is nonzero and has another sign than the divisor."""
    zero = w.constant(0.0, y.element, y.lanes)
    below = [w.compare("arith.cmpf", "olt", value, zero) for value in (rest, y)]
    is_rest = w.compare("arith.cmpf", "une", rest, zero)
    return w.binary("arith.andi", is_rest, w.binary("arith.xori", *below))


def emit_remainder(w: Writer, x: Value, y: Value) -> Value:
    """C's fmod: the remainder of truncated division; it has the sign of x.

    IREE links no fmod for f64, and the one for f32 is not vectorized.
    """
    infinity, zero = (w.constant(n, x.element, x.lanes) for n in (float("inf"), 0.0))
    size, by = w.unary("math.absf", x), w.unary("math.absf", y)
    is_finite = w.compare("arith.cmpf", "olt", size, infinity)
    is_number = w.binary("arith.andi", is_finite, w.compare("arith.cmpf", "ogt", by, zero))
    # Zero for inf and nan, so that the loop ends.
    start = w.select(is_number, size, zero)
    rest = _reduce(w, start, by)
    signed = w.emit(f"math.copysign {rest}, {x} : {x.type}", x.element, x.lanes)
    return w.select(is_number, signed, w.constant(float("nan"), x.element, x.lanes))


def _reduce(w: Writer, size: Value, by: Value) -> Value:
    """Subtract multiples of `by` from `size` until it is smaller; neither is negative."""
    rest, result = w.fresh(size.element, size.lanes), w.fresh(size.element, size.lanes)
    w.line(f"{result} = scf.while ({rest} = {size}) : ({size.type}) -> {size.type} {{")
    w.depth += 1
    is_left = w.compare("arith.cmpf", "oge", rest, by)
    if rest.lanes:
        is_left = w.emit(f"vector.reduction <or>, {is_left} : {is_left.type} into i1", "i1")
    w.line(f"scf.condition({is_left}) {rest} : {rest.type}")
    w.depth -= 1
    inner = w.fresh(size.element, size.lanes)
    w.line(f"}} do {{ ^bb0({inner}: {inner.type}):")
    w.depth += 1
    w.line(f"scf.yield {_subtract_multiple(w, inner, by)} : {inner.type}")
    w.depth -= 1
    w.line("}")
    return result


def _subtract_multiple(w: Writer, rest: Value, by: Value) -> Value:
    """Subtract the largest multiple of `by` whose quotient is exact."""
    scaled = _scale(w, rest, by)
    zero = w.constant(0.0, rest.element, rest.lanes)
    quotient = w.unary("math.trunc", w.binary("arith.divf", rest, scaled))
    negated = w.unary("arith.negf", quotient)
    text = f"math.fma {negated}, {scaled}, {rest} : {rest.type}"
    less = w.emit(text, rest.element, rest.lanes)
    # The quotient may have been rounded up to the next integer.
    is_low = w.compare("arith.cmpf", "olt", less, zero)
    less = w.select(is_low, w.binary("arith.addf", less, scaled), less)
    is_left = w.compare("arith.cmpf", "oge", rest, by)
    return w.select(is_left, less, rest)


def _scale(w: Writer, rest: Value, by: Value) -> Value:
    """by * 2**n, where rest / (by * 2**n) fits the mantissa."""
    width, mantissa = _WIDTHS[rest.element]
    integer, lanes = f"i{width}", rest.lanes

    def number(value: int) -> Value:
        return w.constant(value, integer, lanes)

    bits = [w.convert("arith.bitcast", value, integer) for value in (rest, by)]
    # Neither is negative, so the bits above the mantissa are the exponent.
    above, below = (w.binary("arith.shrui", value, number(mantissa)) for value in bits)
    gap = w.binary("arith.subi", w.binary("arith.subi", above, below), number(mantissa - 2))
    up = w.binary("arith.maxsi", gap, number(0))
    raised = w.binary("arith.addi", bits[1], w.binary("arith.shli", up, number(mantissa)))
    return w.convert("arith.bitcast", raised, rest.element)
