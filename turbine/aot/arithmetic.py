"""Numbers of a procedure while it is traced, and arithmetic on them with Python's meaning.

What Python has no number for, or none of this kind (a division by zero, an int that is too
large), makes the call fail with the user's line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from turbine import dtypes, errors
from turbine.aot import module_trace
from turbine.aot.abstract import AbstractScalar
from turbine.dtypes import Scalar
from turbine.mlir import conversions, flow, scalars
from turbine.mlir.ir import Value

INDEX = dtypes.SCALARS["index"]
INT64 = dtypes.SCALARS["int64"]
FLOAT64 = dtypes.SCALARS["float64"]
BOOL = dtypes.SCALARS["bool"]
_RANK = {name: place for place, name in enumerate(dtypes.SCALARS)}

# A Python number, or one known only at run time.
Number = Any


class IrScalar:
    """A number known only at run time. Arithmetic and comparisons return such numbers too."""

    __hash__ = None  # type: ignore[assignment]  # == gives a value of the program

    def __init__(
        self, value: Value, scalar: Scalar, store: Callable[[Any], None] | None = None
    ) -> None:
        self.value = value
        self.scalar = scalar
        self._store = store

    @property
    def dtype(self) -> str:
        """Its type: "index", "int32", "int64", "float32", "float64" or "bool"."""
        return self.scalar.name

    def __repr__(self) -> str:
        return f"<IrScalar {self.scalar.name}>"

    def set(self, value: Number) -> None:
        """Store a value to the global that this was loaded from."""
        if self._store is None:
            raise errors.ProcedureError(
                f"a {self.scalar.name} that is not a global cannot be set",
                where=module_trace.line(),
                hint="declare a global of the class: x = export_global(value, mutable=True)",
            )
        self._store(value)

    def to(self, kind: AbstractScalar | torch.dtype) -> IrScalar:
        """The number converted to another type; floats are truncated to ints."""
        return convert(self, _scalar(kind))

    def __add__(self, other: Number) -> IrScalar:
        return compute("add", self, other)

    def __radd__(self, other: Number) -> IrScalar:
        return compute("add", other, self)

    def __sub__(self, other: Number) -> IrScalar:
        return compute("sub", self, other)

    def __rsub__(self, other: Number) -> IrScalar:
        return compute("sub", other, self)

    def __mul__(self, other: Number) -> IrScalar:
        return compute("mul", self, other)

    def __rmul__(self, other: Number) -> IrScalar:
        return compute("mul", other, self)

    def __truediv__(self, other: Number) -> IrScalar:
        return true_divide(self, other)

    def __rtruediv__(self, other: Number) -> IrScalar:
        return true_divide(other, self)

    def __floordiv__(self, other: Number) -> IrScalar:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Number) -> IrScalar:
        return floor_divide(other, self)

    def __mod__(self, other: Number) -> IrScalar:
        return remainder(self, other)

    def __rmod__(self, other: Number) -> IrScalar:
        return remainder(other, self)

    def __divmod__(self, other: Number) -> tuple[IrScalar, IrScalar]:
        return floor_divide(self, other), remainder(self, other)

    def __rdivmod__(self, other: Number) -> tuple[IrScalar, IrScalar]:
        return floor_divide(other, self), remainder(other, self)

    def __pow__(self, other: Number) -> IrScalar:
        return power(self, other)

    def __rpow__(self, other: Number) -> IrScalar:
        return power(other, self)

    def __pos__(self) -> IrScalar:
        return _arithmetic(self)

    def __neg__(self) -> IrScalar:
        return negative(self)

    def __abs__(self) -> IrScalar:
        return absolute(self)

    def __round__(self, digits: int | None = None) -> IrScalar:
        if digits is not None:
            raise _refusal("`round` to a count of digits")
        return whole("round", self)

    def __trunc__(self) -> IrScalar:
        return whole("trunc", self)

    def __floor__(self) -> IrScalar:
        return whole("floor", self)

    def __ceil__(self) -> IrScalar:
        return whole("ceil", self)

    def __lshift__(self, other: Number) -> IrScalar:
        return shift_left(self, other)

    def __rlshift__(self, other: Number) -> IrScalar:
        return shift_left(other, self)

    def __rshift__(self, other: Number) -> IrScalar:
        return shift_right(self, other)

    def __rrshift__(self, other: Number) -> IrScalar:
        return shift_right(other, self)

    def __and__(self, other: Number) -> IrScalar:
        return combine_bits("and", self, other)

    def __rand__(self, other: Number) -> IrScalar:
        return combine_bits("and", other, self)

    def __or__(self, other: Number) -> IrScalar:
        return combine_bits("or", self, other)

    def __ror__(self, other: Number) -> IrScalar:
        return combine_bits("or", other, self)

    def __xor__(self, other: Number) -> IrScalar:
        return combine_bits("xor", self, other)

    def __rxor__(self, other: Number) -> IrScalar:
        return combine_bits("xor", other, self)

    def __invert__(self) -> IrScalar:
        if self.scalar is BOOL:
            raise _refusal("`~` of a bool", hint="write `flag == False`; Python's ~True is -2")
        return combine_bits("xor", self, -1)

    def __eq__(self, other: object) -> IrScalar:  # type: ignore[override]
        return compare("eq", self, other)

    def __ne__(self, other: object) -> IrScalar:  # type: ignore[override]
        return compare("ne", self, other)

    def __lt__(self, other: Number) -> IrScalar:
        return compare("lt", self, other)

    def __le__(self, other: Number) -> IrScalar:
        return compare("le", self, other)

    def __gt__(self, other: Number) -> IrScalar:
        return compare("gt", self, other)

    def __ge__(self, other: Number) -> IrScalar:
        return compare("ge", self, other)

    def __bool__(self) -> NoReturn:
        raise _unknown(self.scalar, "decide an if, a while, an `and`, an `or`, a min or a max")

    def __int__(self) -> NoReturn:
        raise _unknown(self.scalar, "become a Python int")

    def __index__(self) -> NoReturn:
        raise _unknown(self.scalar, "become a Python int")

    def __float__(self) -> NoReturn:
        raise _unknown(self.scalar, "become a Python float")


def _scalar(kind: AbstractScalar | torch.dtype) -> Scalar:
    if isinstance(kind, AbstractScalar):
        return kind.scalar
    name = str(kind).removeprefix("torch.")
    if name not in dtypes.SCALARS:
        raise _refusal(errors.unknown("kind of number", name, dtypes.SCALARS))
    return dtypes.SCALARS[name]


def _unknown(scalar: Scalar, deed: str) -> errors.ProcedureError:
    return _refusal(
        f"a {scalar.name} known only at run time cannot {deed}",
        hint="compute with it, choose with IREE.select, IREE.minimum and IREE.maximum, "
        "or decide inside a jittable with torch.where",
    )


def _refusal(fact: str, hint: str | None = None) -> errors.ProcedureError:
    return errors.ProcedureError(fact, where=module_trace.line(), hint=hint)


def constant(number: bool | int | float, scalar: Scalar) -> IrScalar:
    """A Python number as a constant of the program."""
    if not scalar.holds(number):
        raise _refusal(f"{number} is no {scalar.name}")
    return IrScalar(scalars.constant(number, scalar, module_trace.here()), scalar)


def check(condition: IrScalar, message: str) -> None:
    """Make a call fail, with the user's line, unless a condition holds."""
    flow.check(condition.value, f"{message} at {module_trace.line()}", module_trace.here())


# Kinds.


def as_scalar(number: Number, scalar: Scalar) -> IrScalar:
    """A Python number or one of the program, converted to a type."""
    if isinstance(number, IrScalar):
        return convert(number, scalar)
    return constant(number, scalar)


def convert(number: IrScalar, scalar: Scalar) -> IrScalar:
    """A number converted to another type; an error if it does not fit."""
    source = number.scalar
    if scalar.python is int and source.python is float:
        _check_holds(whole("trunc", number, as_float=True), scalar)
    elif scalar.python is int and source.python is int and source.bits > scalar.bits:
        _check_holds(number, scalar)
    return _cast(number, scalar)


def _cast(number: IrScalar, scalar: Scalar) -> IrScalar:
    """A number converted to another type; ints wrap around."""
    return IrScalar(
        conversions.cast(number.value, number.scalar, scalar, module_trace.here()), scalar
    )


def _check_holds(number: IrScalar, scalar: Scalar) -> None:
    limit = 2 ** (scalar.bits - 1)
    check((number >= -limit) & (number < limit), f"a {number.scalar.name} that is no {scalar.name}")


def _alike(
    left: Number, right: Number, operation: str, at_least: str = "int32"
) -> tuple[IrScalar, IrScalar]:
    """Promote two numbers to one type: the later one in `dtypes.SCALARS`."""
    kinds = [_kind(left, right, operation), _kind(right, left, operation)]
    wanted = dtypes.SCALARS[max([*kinds, at_least], key=_RANK.__getitem__)]
    return as_scalar(left, wanted), as_scalar(right, wanted)


def _kind(number: Number, other: Number, operation: str) -> str:
    """The type of a Python number, which depends on the other operand."""
    if isinstance(number, IrScalar):
        return number.scalar.name
    if isinstance(number, bool):
        return "bool"
    beside = other.scalar if isinstance(other, IrScalar) else INT64
    if isinstance(number, int):
        return "int64" if beside.python is bool else beside.name
    if isinstance(number, float):
        return beside.name if beside.python is float else "float64"
    raise _refusal(f"`{operation}` of a {beside.name} and a {type(number).__name__}")


def _arithmetic(number: IrScalar) -> IrScalar:
    """The number; a bool as an int."""
    return _alike(number, False, "+")[0]


# Arithmetic.


def compute(name: str, left: Number, right: Number) -> IrScalar:
    """A sum, a difference or a product."""
    one, two = _alike(left, right, name)
    result = _raw(name, one, two)
    if one.scalar.python is int:
        _check_range(_OVERFLOWS[name](one, two, result), one.scalar)
    return result


def _raw(name: str, left: IrScalar, right: IrScalar) -> IrScalar:
    """Apply a row of `scalars.ARITHMETIC` to two numbers of one type; ints wrap around."""
    value = scalars.compute(name, left.value, right.value, left.scalar, module_trace.here())
    return IrScalar(value, left.scalar)


def _unary(name: str, number: IrScalar) -> IrScalar:
    """Apply a row of `scalars.UNARY` to a float."""
    return IrScalar(scalars.unary(name, number.value, module_trace.here()), number.scalar)


def _select(condition: IrScalar, yes: IrScalar, no: IrScalar) -> IrScalar:
    value = scalars.select(condition.value, yes.value, no.value, module_trace.here())
    return IrScalar(value, yes.scalar)


def _check_range(overflow: IrScalar, scalar: Scalar) -> None:
    check(overflow == False, f"a result too large for {scalar.name}")  # noqa: E712


def _product_overflows(left: IrScalar, right: IrScalar, product: IrScalar) -> IrScalar:
    # Hosts trap on divisions by zero and on the least int by -1.
    plain = (left != 0) & (left != -1)
    divisor = _select(plain, left, constant(1, left.scalar))
    differs = plain & (_raw("divide", product, divisor) != right)
    return differs | ((left == -1) & _is_least(right))


def _is_least(number: IrScalar) -> IrScalar:
    least: int = -(2 ** (number.scalar.bits - 1))
    return number == least


# Whether two ints have a result that their kind cannot hold, by what came out instead.
_OVERFLOWS: dict[str, Callable[[IrScalar, IrScalar, IrScalar], IrScalar]] = {
    "add": lambda a, b, result: ((a ^ result) & (b ^ result)) < 0,
    "sub": lambda a, b, result: ((a ^ b) & (a ^ result)) < 0,
    "mul": _product_overflows,
}


def negative(number: IrScalar) -> IrScalar:
    """The negation, also of zero."""
    plain = _arithmetic(number)
    return compute("sub", 0, plain) if plain.scalar.python is int else _unary("neg", plain)


def absolute(number: IrScalar) -> IrScalar:
    """The absolute value."""
    plain = _arithmetic(number)
    if plain.scalar.python is float:
        return _unary("abs", plain)
    _check_range(_is_least(plain), plain.scalar)
    return _select(plain < 0, _raw("sub", constant(0, plain.scalar), plain), plain)


def whole(name: str, number: IrScalar, *, as_float: bool = False) -> IrScalar:
    """A float rounded to a whole number, as an int64 unless it stays a float."""
    plain = _arithmetic(number)
    if plain.scalar.python is int:
        return plain
    if name == "trunc":
        near = _select(plain < 0, _unary("ceil", plain), _unary("floor", plain))
    else:
        near = _unary(name, plain)
    return near if as_float else convert(near, INT64)


def combine_bits(name: str, left: Number, right: Number) -> IrScalar:
    """A bitwise operation on ints or bools."""
    return _raw(name, *_bits(left, right, name, at_least="bool"))


def shift_left(left: Number, right: Number) -> IrScalar:
    """An int shifted left."""
    one, two = _bits(left, right, "<<")
    by = _shift(two)
    result = _raw("shl", one, by)
    is_kept = (by == two) & (_raw("shr", result, by) == one)
    check((one == 0) | is_kept, f"a result too large for {one.scalar.name}")
    return result


def shift_right(left: Number, right: Number) -> IrScalar:
    """An int shifted right, rounded down."""
    one, two = _bits(left, right, ">>")
    return _raw("shr", one, _shift(two))


def _bits(
    left: Number, right: Number, operation: str, at_least: str = "int32"
) -> tuple[IrScalar, IrScalar]:
    one, two = _alike(left, right, operation, at_least)
    if one.scalar.python is float:
        raise _refusal(f"`{operation}` of a float")
    return one, two


def _shift(count: IrScalar) -> IrScalar:
    """A shift amount, limited to what the host can shift by."""
    check(count >= 0, "a shift by a negative count")
    most = constant(count.scalar.bits - 1, count.scalar)
    return _select(count < most, count, most)


def select(condition: Number, yes: Number, no: Number) -> IrScalar:
    """One of two numbers, as numbers of one kind."""
    return _select(as_scalar(condition, BOOL), *_alike(yes, no, "select", at_least="bool"))


# Comparisons.


def compare(name: str, left: Number, right: Number) -> IrScalar:
    """Compare two numbers by a row of `scalars.COMPARISONS`."""
    one, two = _alike(left, right, name, at_least="bool")
    if _is_int(left) and two.scalar.python is float:
        return _compare_exactly(name, left, two)
    if _is_int(right) and one.scalar.python is float:
        return _compare_exactly(_MIRRORED.get(name, name), right, one)
    return _compare(name, one, two)


_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _is_int(number: Number) -> bool:
    return isinstance(number, IrScalar) and number.scalar.python is int


def _compare(name: str, left: IrScalar, right: IrScalar) -> IrScalar:
    value = scalars.compare(name, left.value, right.value, left.scalar, module_trace.here())
    return IrScalar(value, BOOL)


def _compare_exactly(name: str, number: IrScalar, other: IrScalar) -> IrScalar:
    """Compare an int with a float exactly: the int may lie between two floats."""
    left, right = _cast(number, INT64), _cast(other, FLOAT64)
    rounded = _cast(left, FLOAT64)
    # The rounding error; that of 2**63 wraps around to the correct one.
    rest = _raw("sub", left, _cast(rounded, INT64))
    return _select(
        _compare("eq", rounded, right),
        _compare(name, rest, constant(0, INT64)),
        _compare(name, rounded, right),
    )


# Division.


def true_divide(left: Number, right: Number) -> IrScalar:
    """A quotient, as a float: of ints as float64."""
    one, two = _alike(left, right, "/")
    _check_divisor(two)
    if one.scalar.python is int:
        one, two = convert(one, FLOAT64), convert(two, FLOAT64)
    return _raw("divide", one, two)


def floor_divide(left: Number, right: Number) -> IrScalar:
    """A quotient rounded down."""
    one, two = _alike(left, right, "//")
    _check_divisor(two)
    if one.scalar.python is float:
        return _divide_floats(one, two)[0]
    _check_range(_is_least(one) & (two == -1), one.scalar)
    return _divide_ints(one, two)[0]


def remainder(left: Number, right: Number) -> IrScalar:
    """The remainder of floor division, with the sign of the divisor."""
    one, two = _alike(left, right, "%")
    _check_divisor(two)
    return (_divide_ints if one.scalar.python is int else _divide_floats)(one, two)[1]


def _check_divisor(divisor: IrScalar) -> None:
    check(divisor != 0, "division by zero")


def _divide_ints(one: IrScalar, two: IrScalar) -> tuple[IrScalar, IrScalar]:
    # Hosts trap on divisions by zero and on the least int by -1.
    flips = two == -1
    divisor = _select(flips | (two == 0), constant(1, two.scalar), two)
    quotient, rest = _raw("divide", one, divisor), _raw("remainder", one, divisor)
    is_lower = (rest != 0) & ((rest < 0) ^ (divisor < 0))
    lower = _raw("sub", quotient, constant(1, one.scalar))
    flipped = _raw("sub", constant(0, one.scalar), one)
    return (
        _select(flips, flipped, _select(is_lower, lower, quotient)),
        _select(is_lower, _raw("add", rest, divisor), rest),
    )


def _divide_floats(one: IrScalar, two: IrScalar) -> tuple[IrScalar, IrScalar]:
    """As CPython does, whose quotient is not that of `/` rounded down: 1.0 // 0.1 is 9.0."""
    size = _unary("abs", two)
    # The host's remainder is that of the nearest quotient, where C's fmod has the sign of `one`.
    near = _raw("remainder", one, two)
    towards = _select(one < 0, _unary("neg", size), size)
    is_other = (near != 0) & ((near < 0) ^ (one < 0))
    rest = _select(is_other, near + towards, near)
    quotient = _raw("divide", one - rest, two)
    is_lower = (rest != 0) & ((rest < 0) ^ (two < 0))
    quotient = _select(is_lower, quotient - 1, quotient)
    modulo = _select(rest == 0, _zero_like(two), _select(is_lower, rest + two, rest))
    down = _unary("floor", quotient)
    nearest = _select(quotient - down > 0.5, down + 1, down)
    small = _zero_like(_raw("divide", one, two))
    return _select(quotient == 0, small, nearest), modulo


def _zero_like(number: IrScalar) -> IrScalar:
    return IrScalar(
        scalars.zero_like(number.value, number.scalar, module_trace.here()), number.scalar
    )


# Powers.


def power(left: Number, right: Number) -> IrScalar:
    """A power; an int to a negative Python number is a float."""
    is_literal = isinstance(right, int) and not isinstance(right, bool)
    one, two = _alike(left, right, "**")
    if one.scalar.python is float:
        return _float_power(one, two)
    if is_literal and right < 0:
        return _float_power(convert(one, FLOAT64), constant(right, FLOAT64))
    return _int_power(one, two)


def _float_power(one: IrScalar, two: IrScalar) -> IrScalar:
    result = _raw("power", one, two)
    is_finite = _is_finite(one) & _is_finite(two)
    problems = {
        "a negative number to a power that is not whole": (one < 0)
        & (whole("floor", two, as_float=True) != two),
        "zero to a negative power": (one == 0) & (two < 0),
        f"a result too large for {one.scalar.name}": _is_finite(result) == False,  # noqa: E712
    }
    for message, problem in problems.items():
        check((is_finite & problem) == False, message)  # noqa: E712
    return result


def _is_finite(number: IrScalar) -> IrScalar:
    return _unary("abs", number) < float("inf")


def _int_power(one: IrScalar, two: IrScalar) -> IrScalar:
    """Exponentiation by squaring, with as many steps as a result that fits can need."""
    scalar = one.scalar
    check(two >= 0, "an int to a negative power, which is a float")
    # Of 0, 1 and -1 large powers are those by 1 or 2.
    is_small = (one >= -1) & (one <= 1) & (two > 1)
    left = _select(is_small, _raw("sub", constant(2, scalar), two & 1), two)
    overflow = left >= scalar.bits
    result, square, is_square_wrong = constant(1, scalar), one, constant(False, BOOL)
    for place in range(scalar.bits.bit_length() - 1):
        used = (left & 2**place) != 0
        product, wrong = _product(result, square)
        overflow = overflow | (used & (wrong | is_square_wrong))
        result = _select(used, product, result)
        square, wrong = _product(square, square)
        is_square_wrong = is_square_wrong | wrong
    _check_range(overflow, scalar)
    return result


def _product(left: IrScalar, right: IrScalar) -> tuple[IrScalar, IrScalar]:
    """A product, and whether it overflows its type."""
    product = _raw("mul", left, right)
    return product, _product_overflows(left, right, product)
