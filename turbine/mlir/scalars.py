"""Numbers in IR: constants, arithmetic, comparisons and conversions at the insertion point."""

from __future__ import annotations

from typing import Any

from iree.compiler.dialects import arith, math
from iree.compiler.ir import Attribute, FloatAttr, IntegerAttr, Location, Type, Value

from turbine.dtypes import Scalar

# Name -> the op on ints, the op on floats.
ARITHMETIC: dict[str, tuple[Any, Any]] = {
    "add": (arith.AddIOp, arith.AddFOp),
    "sub": (arith.SubIOp, arith.SubFOp),
    "mul": (arith.MulIOp, arith.MulFOp),
    "divide": (arith.DivSIOp, arith.DivFOp),
    "remainder": (arith.RemSIOp, arith.RemFOp),
    "and": (arith.AndIOp, None),
    "or": (arith.OrIOp, None),
    "xor": (arith.XOrIOp, None),
}
# Name -> the predicate on signed ints, the one on floats (false of nan, but for "ne").
COMPARISONS = {
    "eq": (arith.CmpIPredicate.eq, arith.CmpFPredicate.OEQ),
    "ne": (arith.CmpIPredicate.ne, arith.CmpFPredicate.UNE),
    "lt": (arith.CmpIPredicate.slt, arith.CmpFPredicate.OLT),
    "le": (arith.CmpIPredicate.sle, arith.CmpFPredicate.OLE),
    "gt": (arith.CmpIPredicate.sgt, arith.CmpFPredicate.OGT),
    "ge": (arith.CmpIPredicate.sge, arith.CmpFPredicate.OGE),
}


def attribute(number: bool | int | float, of: Scalar) -> Attribute:
    """A number as an attribute."""
    kind = Type.parse(of.mlir)
    if of.python is float:
        return FloatAttr.get(kind, float(number))
    return IntegerAttr.get(kind, int(number))


def constant(number: bool | int | float, of: Scalar, location: Location) -> Value:
    """A number that is known now."""
    value = attribute(number, of)
    return arith.ConstantOp(value.type, value, loc=location).result


def compute(name: str, left: Value, right: Value, of: Scalar, location: Location) -> Value:
    """Two numbers of one kind by a row of ARITHMETIC."""
    operation = ARITHMETIC[name][of.python is float]
    return operation(left, right, loc=location).result


def compare(name: str, left: Value, right: Value, of: Scalar, location: Location) -> Value:
    """Whether two numbers of one kind stand as a row of COMPARISONS says."""
    predicate = COMPARISONS[name][of.python is float]
    if of.python is float:
        return arith.CmpFOp(predicate, left, right, loc=location).result
    if of.python is bool and name not in ("eq", "ne"):
        wide = Type.parse("i32")
        left, right = (arith.ExtUIOp(wide, side, loc=location).result for side in (left, right))
    return arith.CmpIOp(predicate, left, right, loc=location).result


def select(condition: Value, yes: Value, no: Value, location: Location) -> Value:
    """One of two values."""
    return arith.SelectOp(condition, yes, no, loc=location).result


def floor(value: Value, location: Location) -> Value:
    """The largest whole number that is not larger."""
    return math.FloorOp(value, loc=location).result


def cast(value: Value, source: Scalar, to: Scalar, location: Location) -> Value:
    """A number as another kind; a float becomes an int by leaving out its fraction."""
    if source.name == to.name:
        return value
    if to.python is bool:
        zero = constant(0, source, location)
        return compare("ne", value, zero, source, location)
    if source.python is float and to.python is int:
        value = _whole(value, source, location)
    if "index" in (source.name, to.name):
        return _cast_index(value, source, to, location)
    operation = _CASTS[source.python, to.python]
    if source.python is to.python:
        operation = operation[source.bits > to.bits]
    return operation(Type.parse(to.mlir), value, loc=location).result


def _whole(value: Value, of: Scalar, location: Location) -> Value:
    """A float without its fraction; the runtime rounds, where the op is said to cut off."""
    zero = constant(0.0, of, location)
    negative = compare("lt", value, zero, of, location)
    up = math.CeilOp(value, loc=location).result
    return select(negative, up, floor(value, location), location)


# (from, to) -> the op; within a kind, the one that widens and the one that narrows.
_CASTS: dict[tuple[type, type], Any] = {
    (bool, int): arith.ExtUIOp,
    (bool, float): arith.UIToFPOp,
    (int, int): (arith.ExtSIOp, arith.TruncIOp),
    (int, float): arith.SIToFPOp,
    (float, int): arith.FPToSIOp,
    (float, float): (arith.ExtFOp, arith.TruncFOp),
}
_WIDE = Scalar("int64", "i64", 64, int)


def _cast_index(value: Value, source: Scalar, to: Scalar, location: Location) -> Value:
    if source.name == "index":
        wide = arith.IndexCastOp(Type.parse(_WIDE.mlir), value, loc=location).result
        return cast(wide, _WIDE, to, location)
    wide = cast(value, source, _WIDE, location)
    return arith.IndexCastOp(Type.parse(to.mlir), wide, loc=location).result


def narrow(value: Value, to: Type, of: Scalar, location: Location) -> Value:
    """A tensor of one kind of number with narrower elements of that kind."""
    operation = arith.TruncFOp if of.python is float else arith.TruncIOp
    return value if value.type == to else operation(to, value, loc=location).result
