"""Scalar arithmetic at run time matches Python, or the call fails."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest

import turbine
from turbine import aot, dtypes, errors
from turbine.aot import IREE, CompiledModule
from turbine.aot.abstract import AbstractScalar

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "divmod": divmod,
    "pow": operator.pow,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
BITS: dict[str, Callable[[Any, Any], Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": abs,
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "square": lambda a: a**2,
    "cube": lambda a: a**3,
    "inverse": lambda a: a**-1,
    "power_of_two": lambda a: 2**a,
}
KINDS = {name: AbstractScalar(row) for name, row in dtypes.SCALARS.items()}

BOOLS = (False, True)
SMALL = (-7, -2, -1, 0, 1, 2, 3, 62)
I32 = (*SMALL, 31, 46341, 2**31 - 1, -(2**31), -(2**31) + 1)
I64 = (*I32, 63, 64, 2**31, 3037000500, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1)
HALVES = (-3.0, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 7.0)
SPECIAL = (math.inf, -math.inf, math.nan)
F64 = (
    *HALVES,
    *SPECIAL,
    0.1,
    1e-20,
    1e200,
    -1e300,
    2.0**53,
    2.0**63,
    -(2.0**63),
    4503599627370497.5,
)
SAMPLES: dict[str, Sequence[Any]] = {
    "bool": BOOLS,
    "int32": I32,
    "index": I64,
    "int64": I64,
    "float64": F64,
}
PAIRS = [
    *(("bool", "bool"), ("int32", "int32"), ("index", "index"), ("int64", "int64")),
    *(("float64", "float64"), ("bool", "float64"), ("int32", "float64"), ("int64", "float64")),
    *(("float64", "bool"), ("float64", "int32"), ("float64", "int64"), ("int32", "int64")),
    *(("bool", "int32"), ("int64", "bool")),
]


def binary(operation: Callable[[Any, Any], Any], left: str, right: str) -> Any:
    def run(self: Any, a: Any = KINDS[left], b: Any = KINDS[right]) -> Any:
        return operation(a, b)

    return run


def unary(operation: Callable[[Any], Any], kind: str) -> Any:
    def run(self: Any, a: Any = KINDS[kind]) -> Any:
        return operation(a)

    return run


def operations(left: str, right: str) -> dict[str, Callable[[Any, Any], Any]]:
    are_ints = "float64" not in (left, right)
    return {**BINARY, **(BITS if are_ints else {})}


def compiled(members: dict[str, Any]) -> turbine.Artifact:
    return aot.export(CompiledModule.create_from_dict("Operations", members)).compile()


def expected(operation: Callable[..., Any], numbers: Sequence[Any], bits: int) -> Any:
    """What Python makes of numbers; None where it raises or an int has more bits."""
    try:
        result = operation(*numbers)
    except (ArithmeticError, ValueError):
        return None
    leaves = result if isinstance(result, tuple) else (result,)
    limit = 2 ** (bits - 1)
    is_held = all(
        -limit <= leaf < limit if isinstance(leaf, int) else isinstance(leaf, float)
        for leaf in leaves
    )
    return result if is_held else None


def is_same(found: Any, wanted: Any) -> bool:
    """Equal, nan to nan, and zeros by their sign."""
    return type(found) is type(wanted) and repr(found) == repr(wanted)


def fits_python(operation: Callable[..., Any], numbers: Sequence[Any]) -> bool:
    """Whether Python computes the result in reasonable time, with one type."""
    if operation is operator.lshift:
        return bool(abs(numbers[1]) < 10**4)
    if operation is UNARY["power_of_two"] and isinstance(numbers[0], int):
        return 0 <= numbers[0] < 10**4
    if operation is operator.pow and all(isinstance(number, int) for number in numbers):
        base, exponent = numbers
        return bool(exponent >= 0 and (exponent < 10**4 or abs(base) <= 1))
    # Where ints are no floats, quotients are those of the floats nearest to them.
    if operation is operator.truediv and all(isinstance(number, int) for number in numbers):
        return all(int(float(number)) == number for number in numbers)
    return True


def disagreements(
    artifact: turbine.Artifact,
    entry: str,
    operation: Callable[..., Any],
    samples: Sequence[tuple[Any, ...]],
    bits: int,
) -> list[str]:
    found = []
    for numbers in samples:
        if not fits_python(operation, numbers):
            continue
        wanted = expected(operation, numbers, bits)
        try:
            given = artifact.function(entry)(*numbers)
        except errors.RunError:
            given = None
        if not is_same(given, wanted):
            found.append(f"{entry}{numbers} is {given}, in Python {wanted}")
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_binary_ops_match_python(kinds: tuple[str, str]) -> None:
    functions = operations(*kinds)
    artifact = compiled({name: binary(function, *kinds) for name, function in functions.items()})
    samples = list(itertools.product(*(SAMPLES[kind] for kind in kinds)))
    bits = 32 if set(kinds) <= {"bool", "int32"} else 64
    wrong = [
        text
        for name, operation in functions.items()
        for text in disagreements(artifact, name, operation, samples, bits)
    ]
    assert wrong == []


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", SAMPLES)
def test_unary_ops_match_python(kind: str) -> None:
    artifact = compiled({name: unary(function, kind) for name, function in UNARY.items()})
    bits = 32 if kind in ("bool", "int32") else 64
    samples = [(number,) for number in SAMPLES[kind]]
    wrong = [
        text
        for name, operation in UNARY.items()
        for text in disagreements(artifact, name, operation, samples, bits)
    ]
    assert wrong == []


CONVERTED = (*F64, 0.3, -2.9, 3.4028235677973362e38, 3.4028235677973366e38, 1e-42, 1 + 2**-24)


class Conversions(CompiledModule):
    """Every kind from every other one."""

    def from_float64(self, x=aot.AbstractF64):
        return x.to(aot.AbstractF32), x.to(aot.AbstractBool)

    def ints(self, x=aot.AbstractF64):
        return x.to(aot.AbstractI32), x.to(aot.AbstractI64), x.to(aot.AbstractIndex)

    def from_float32(self, x=aot.AbstractF32):
        return x.to(aot.AbstractI32), x.to(aot.AbstractI64), x.to(aot.AbstractF64)

    def from_int64(self, x=aot.AbstractI64):
        return x.to(aot.AbstractF32), x.to(aot.AbstractF64), x.to(aot.AbstractBool)

    def narrowed(self, x=aot.AbstractI64):
        return x.to(aot.AbstractI32)

    def through_int64(self, x=aot.AbstractI32):
        return x.to(aot.AbstractI64).to(aot.AbstractF64)

    def chosen(self, a=aot.AbstractI32, b=aot.AbstractF64):
        return IREE.minimum(a, b), IREE.maximum(a, b), IREE.select(a > 0, a, b)

    def float32s(self, a=aot.AbstractF32, b=aot.AbstractF32):
        return a + b, a - b, a * b, a // b, a % b, a**2, abs(a), -a, a >= b


@pytest.fixture(scope="module")
def conversions() -> turbine.Artifact:
    return aot.export(Conversions).compile()


@pytest.mark.parametrize("number", CONVERTED)
def test_float64_rounds_to_the_nearest_float32(
    number: float, conversions: turbine.Artifact
) -> None:
    with numpy.errstate(over="ignore"):
        wanted = float(numpy.float32(number))
    assert repr(conversions.from_float64(number)) == repr((wanted, bool(number)))


def test_floats_are_truncated_to_ints(conversions: turbine.Artifact) -> None:
    for number in (-2.9, -0.5, 0.3, 2.5, 2.0**31 - 1, -(2.0**31)):
        assert conversions.ints(number) == (int(number),) * 3
    assert conversions.from_float32(-2.75) == (-2, -2, -2.75)


@pytest.mark.parametrize("number", [2.0**31, -(2.0**31) - 1, 1e300, math.inf, math.nan])
def test_floats_out_of_range_of_ints_fail(number: float, conversions: turbine.Artifact) -> None:
    with pytest.raises(errors.RunError, match=r"a float64 that is no int32 at .*test_arithmetic"):
        conversions.ints(number)


@pytest.mark.parametrize("number", I64)
def test_ints_round_to_the_nearest_float(number: int, conversions: turbine.Artifact) -> None:
    wanted = float(numpy.int64(number).astype(numpy.float32)), float(number), bool(number)
    assert conversions.from_int64(number) == wanted


def test_int_conversions_are_exact_or_fail(conversions: turbine.Artifact) -> None:
    assert conversions.narrowed(-(2**31)) == -(2**31)
    assert conversions.through_int64(-(2**31)) == -(2.0**31)
    with pytest.raises(errors.RunError, match="a int64 that is no int32"):
        conversions.narrowed(2**31)


@pytest.mark.parametrize(("a", "b"), [(3, 2.5), (-1, 2.5), (2, 2.0), (0, -0.5)])
def test_select_returns_one_of_two_numbers(a: int, b: float, conversions: turbine.Artifact) -> None:
    assert conversions.chosen(a, b) == (min(a, b), max(a, b), a if a > 0 else b)


def test_float32_arithmetic_rounds_to_float32(conversions: turbine.Artifact) -> None:
    for a, b in [(7.5, -2.0), (-0.1, 0.3), (1e15, 3.0)]:
        x, y = numpy.float32(a), numpy.float32(b)
        wanted = (x + y, x - y, x * y, x // y, x % y, x**2, abs(x), -x, x >= y)
        assert conversions.float32s(a, b) == tuple(value.item() for value in wanted)


def refused(body: Callable[[Any], Any], kind: str, match: str) -> None:
    with pytest.raises(errors.ProcedureError, match=match) as caught:
        CompiledModule.create_from_dict("Wrong", {"run": unary(body, kind)})()
    assert "test_arithmetic.py:" in (caught.value.where or "")


def test_unsupported_arithmetic_names_the_line() -> None:
    refused(lambda a: a & 1, "float64", "`and` of a float")
    refused(lambda a: a << 1, "float64", "`<<` of a float")
    refused(operator.invert, "bool", "`~` of a bool")
    refused(lambda a: round(a, 2), "float64", "`round` to a count of digits")
    refused(lambda a: min(a, 2), "int64", "a min or a max")
    refused(lambda a: a + 2**31, "int32", "2147483648 is no int32")
    refused(lambda a: a + 1e300, "float32", "1e\\+300 is no float32")
    refused(lambda a: a + 10**400, "float64", "is no float64")
    refused(lambda a: a + "x", "int64", "`add` of a int64 and a str")
