"""Numbers of one kind as another, at the insertion point, with what IREE's host code can do.

The host has no op from float64 to ints and float32, and none from int32 to float64, into which
MLIR folds int32 -> int64 -> float64. Those are computed from bits and halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iree.compiler.dialects import arith
from iree.compiler.ir import Location, Type, Value

from turbine.dtypes import SCALARS, Scalar
from turbine.mlir.scalars import compare, compute, constant, select

_INT32, _INT64, _FLOAT32, _FLOAT64 = (
    SCALARS[name] for name in ("int32", "int64", "float32", "float64")
)


def cast(value: Value, source: Scalar, to: Scalar, location: Location) -> Value:
    """Convert a number to another kind; floats are truncated to ints.

    An int that is too large loses its upper bits.
    """
    if source.name == to.name:
        return value
    if to.python is bool:
        return compare("ne", value, constant(0, source, location), source, location)
    if source.python is bool:
        return select(value, constant(1, to, location), constant(0, to, location), location)
    pair = source.name, to.name
    if pair in _DETOURS:
        by = _DETOURS[pair]
        return cast(cast(value, source, by, location), by, to, location)
    if pair in _COMPUTED:
        return _COMPUTED[pair](value, location)
    return _OPS[pair](Type.parse(to.mlir), value, loc=location).result


def _from_int64(value: Value, location: Location) -> Value:
    """Convert an int64 to float64 in two halves; only their sum is rounded."""
    ints = _Ints(location)
    halves = ints("shr", value, 32), ints("and", value, 2**32 - 1)
    upper, lower = (arith.SIToFPOp(Type.parse("f64"), half, loc=location).result for half in halves)
    unit = constant(2.0**32, _FLOAT64, location)
    scaled = compute("mul", upper, unit, _FLOAT64, location)
    return compute("add", scaled, lower, _FLOAT64, location)


def _to_int64(value: Value, location: Location) -> Value:
    """Convert a float64 to int64: shift its significand by its exponent."""
    ints = _Ints(location)
    bits = _bits(value, _INT64, location)
    significand = ints("or", ints("and", bits, 2**52 - 1), 2**52)
    exponent = ints("sub", ints("and", ints("shr", bits, 52), 2**11 - 1), 1023 + 52)
    up = ints("shl", significand, ints.between_0_and_63(exponent))
    down = ints("shr", significand, ints.between_0_and_63(ints("sub", 0, exponent)))
    size = ints.select("lt", exponent, 0, down, up)
    return ints.select("lt", bits, 0, ints("sub", 0, size), size)


def _to_float32(value: Value, location: Location) -> Value:
    """Round a float64 to the nearest float32, ties to even."""
    ints = _Ints(location)
    bits = _bits(value, _INT64, location)
    size = ints("and", bits, 2**63 - 1)
    is_odd = ints("and", ints("shr", size, 29), 1)
    rounded = ints("shr", ints("add", size, ints("add", is_odd, 2**28 - 1)), 29)
    normal = ints("sub", rounded, (1023 - 127) << 23)
    small = ints.select("lt", size, _LEAST_NORMAL, _subnormal(size, location), normal)
    finite = ints.select("lt", small, _INFINITY, small, _INFINITY)
    result = ints.select("gt", size, 0x7FF << 52, _NAN, finite)
    sign = ints("and", ints("shr", bits, 32), 2**31)
    whole = cast(ints("or", result, sign), _INT64, _INT32, location)
    return _bits(whole, _FLOAT32, location)


# Bits of float32 numbers, and of the smallest float64 that is a normal float32.
_INFINITY, _NAN = 0x7F800000, 0x7FC00000
_LEAST_NORMAL = (1023 - 126) << 52


def _subnormal(size: Value, location: Location) -> Value:
    """A small float64 in units of the smallest float32; adding a large number rounds."""
    large = constant(2.0 ** (52 - 149), _FLOAT64, location)
    number = _bits(size, _FLOAT64, location)
    total = _bits(compute("add", number, large, _FLOAT64, location), _INT64, location)
    return _Ints(location)("sub", total, (1023 + 52 - 149) << 52)


def _bits(value: Value, to: Scalar, location: Location) -> Value:
    return arith.BitcastOp(Type.parse(to.mlir), value, loc=location).result


class _Ints:
    """Arithmetic on int64 values and Python ints at a location."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def __call__(self, name: str, left: Value | int, right: Value | int) -> Value:
        return compute(name, self.value(left), self.value(right), _INT64, self.location)

    def value(self, number: Value | int) -> Value:
        return constant(number, _INT64, self.location) if isinstance(number, int) else number

    def select(
        self, name: str, left: Value | int, right: Value | int, yes: Value | int, no: Value | int
    ) -> Value:
        condition = compare(name, self.value(left), self.value(right), _INT64, self.location)
        return select(condition, self.value(yes), self.value(no), self.location)

    def between_0_and_63(self, count: Value) -> Value:
        least = self.select("lt", count, 0, 0, count)
        return self.select("gt", least, 63, 63, least)


_OPS: dict[tuple[str, str], Any] = {
    ("int32", "index"): arith.IndexCastOp,
    ("int32", "int64"): arith.ExtSIOp,
    ("int32", "float32"): arith.SIToFPOp,
    ("index", "int32"): arith.IndexCastOp,
    ("index", "int64"): arith.IndexCastOp,
    ("int64", "int32"): arith.TruncIOp,
    ("int64", "index"): arith.IndexCastOp,
    ("int64", "float32"): arith.SIToFPOp,
    ("float32", "float64"): arith.ExtFOp,
}
# Conversions through another kind.
_DETOURS = {
    ("int32", "float64"): _INT64,
    ("index", "float32"): _INT64,
    ("index", "float64"): _INT64,
    ("float32", "int32"): _FLOAT64,
    ("float32", "index"): _FLOAT64,
    ("float32", "int64"): _FLOAT64,
    ("float64", "int32"): _INT64,
    ("float64", "index"): _INT64,
}
_COMPUTED: dict[tuple[str, str], Callable[[Value, Location], Value]] = {
    ("int64", "float64"): _from_int64,
    ("float64", "int64"): _to_int64,
    ("float64", "float32"): _to_float32,
}
