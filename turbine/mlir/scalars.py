"""Numbers in IR: constants, arithmetic and comparisons at the insertion point."""

from __future__ import annotations

from typing import Any

from iree.compiler.dialects import arith, math
from iree.compiler.ir import Attribute, FloatAttr, IntegerAttr, Location, Type, Value

from turbine.dtypes import SCALARS, Scalar

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
    "shl": (arith.ShLIOp, None),
    "shr": (arith.ShRSIOp, None),
    "power": (None, math.PowFOp),
}
# Name -> the op on floats.
UNARY: dict[str, Any] = {
    "abs": math.AbsFOp,
    "neg": arith.NegFOp,
    "floor": math.FloorOp,
    "ceil": math.CeilOp,
    "round": math.RoundEvenOp,
}
# Name -> the predicate on signed ints, the one on floats.
COMPARISONS = {
    "eq": (arith.CmpIPredicate.eq, arith.CmpFPredicate.OEQ),
    "ne": (arith.CmpIPredicate.ne, None),
    "lt": (arith.CmpIPredicate.slt, arith.CmpFPredicate.OLT),
    "le": (arith.CmpIPredicate.sle, arith.CmpFPredicate.OLE),
    "gt": (arith.CmpIPredicate.sgt, arith.CmpFPredicate.OGT),
    "ge": (arith.CmpIPredicate.sge, None),
}


def attribute(number: bool | int | float, of: Scalar) -> Attribute:
    """Convert a number to an attribute."""
    kind = Type.parse(of.mlir)
    if of.python is float:
        return FloatAttr.get(kind, float(number))
    return IntegerAttr.get(kind, int(number))


def constant(number: bool | int | float, of: Scalar, location: Location) -> Value:
    """A constant."""
    value = attribute(number, of)
    return arith.ConstantOp(value.type, value, loc=location).result


def compute(name: str, left: Value, right: Value, of: Scalar, location: Location) -> Value:
    """Combine two numbers of one kind by a row of ARITHMETIC."""
    operation = ARITHMETIC[name][of.python is float]
    return operation(left, right, loc=location).result


def compare(name: str, left: Value, right: Value, of: Scalar, location: Location) -> Value:
    """Compare two numbers of one type by a row of COMPARISONS."""
    predicate = COMPARISONS[name][of.python is float]
    if of.python is float:
        return _compare_floats(name, left, right, location)
    if of.python is bool and name not in ("eq", "ne"):
        wide = Type.parse("i32")
        left, right = (arith.ExtUIOp(wide, side, loc=location).result for side in (left, right))
    return arith.CmpIOp(predicate, left, right, loc=location).result


def _compare_floats(name: str, left: Value, right: Value, location: Location) -> Value:
    """Work around the host: `oge` is true for nan, and `une` false in an assert."""
    if name == "ge":
        return _compare_floats("le", right, left, location)
    if name == "ne":
        true = constant(True, SCALARS["bool"], location)
        same = _compare_floats("eq", left, right, location)
        return arith.XOrIOp(same, true, loc=location).result
    return arith.CmpFOp(COMPARISONS[name][1], left, right, loc=location).result


def zero_like(value: Value, of: Scalar, location: Location) -> Value:
    """A zero with the sign of a float; the host has no constant -0.0."""
    kind = SCALARS[f"int{of.bits}"]
    bits = arith.BitcastOp(Type.parse(kind.mlir), value, loc=location).result
    sign = compute("and", bits, constant(-(2 ** (of.bits - 1)), kind, location), kind, location)
    return arith.BitcastOp(Type.parse(of.mlir), sign, loc=location).result


def select(condition: Value, yes: Value, no: Value, location: Location) -> Value:
    """Select one of two values."""
    return arith.SelectOp(condition, yes, no, loc=location).result


def unary(name: str, value: Value, location: Location) -> Value:
    """Apply a row of UNARY to a float."""
    return UNARY[name](value, loc=location).result


def narrow(value: Value, to: Type, of: Scalar, location: Location) -> Value:
    """Convert a tensor to narrower elements of the same kind."""
    operation = arith.TruncFOp if of.python is float else arith.TruncIOp
    return value if value.type == to else operation(to, value, loc=location).result
