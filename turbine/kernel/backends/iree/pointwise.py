"""Rules of elementwise ops, for each kind of dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.casting import bitcast, emit_cast
from turbine.kernel.backends.iree.emitter import RULES, Emitter
from turbine.kernel.backends.iree.math import float_division
from turbine.kernel.backends.iree.tiles import Coord, Coords, TileValue, merge_reads
from turbine.kernel.lang import arithmetic, casting, functions
from turbine.kernel.trace.op import Op, arguments
from turbine.mlir import vector_math
from turbine.mlir.writer import Value, Writer

# Writes an op: operands of one dtype in, the result out.
Form = Callable[[Writer, Dtype, Sequence[Value]], Value]


def _by_kind(names: dict[str, str]) -> Form:
    """An MLIR op for each kind of dtype."""

    def form(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
        name = names[dtype.kind]
        return w.binary(name, *values) if len(values) == 2 else w.unary(name, *values)

    return form


def _numeric(name: str) -> Form:
    whole = f"arith.{name}i"
    return _by_kind({"float": f"arith.{name}f", "int": whole, "uint": whole})


def _bits(name: str) -> Form:
    return _by_kind(dict.fromkeys(("bool", "int", "uint"), f"arith.{name}"))


def _extreme(name: str) -> Form:
    kinds = {"float": f"arith.{name}imumf", "int": f"arith.{name}si", "uint": f"arith.{name}ui"}
    return _by_kind(kinds | {"bool": f"arith.{name}ui"})


def _comparison(of_floats: str, of_integers: str) -> Form:
    def form(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
        if dtype.kind == "float":
            return w.compare("arith.cmpf", of_floats, *values)
        sign = "" if of_integers in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
        return w.compare("arith.cmpi", f"{sign}{of_integers}", *values)

    return form


def _function(name: str) -> Form:
    def form(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
        return vector_math.FUNCTIONS[name](w, *values)

    return form


def _negate(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    (x,) = values
    if dtype.kind == "float":
        return w.unary("arith.negf", x)
    return w.binary("arith.subi", w.constant(0, x.element, x.lanes), x)


def _absolute(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    (x,) = values
    if dtype.kind == "uint":
        return x
    return w.unary("math.absf" if dtype.kind == "float" else "math.absi", x)


def _not(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    (x,) = values
    return w.binary(
        "arith.xori", x, w.constant(True if x.element == "i1" else -1, x.element, x.lanes)
    )


def _floor_divide(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    x, y = values
    if dtype.kind == "float":
        return float_division.floor_divide(w, x, y)
    op = "arith.floordivsi" if dtype.kind == "int" else "arith.divui"
    return _divide(w, dtype, x, y, op, w.binary("arith.subi", w.constant(0, x.element, x.lanes), x))


def _remainder(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    x, y = values
    if dtype.kind == "float":
        return float_division.remainder(w, x, y)
    zero = w.constant(0, x.element, x.lanes)
    if dtype.kind == "uint":
        return _divide(w, dtype, x, y, "arith.remui", zero)
    safe, _, _ = _safe_divisor(w, dtype, y)
    quotient = w.binary("arith.floordivsi", x, safe)
    rest = w.binary("arith.subi", x, w.binary("arith.muli", quotient, safe))
    by_zero = w.compare("arith.cmpi", "eq", y, zero)
    by_minus_one = w.compare("arith.cmpi", "eq", y, w.constant(-1, x.element, x.lanes))
    return w.select(w.binary("arith.ori", by_zero, by_minus_one), zero, rest)


def _divide(w: Writer, dtype: Dtype, x: Value, y: Value, op: str, negated: Value) -> Value:
    """A division that never traps: zero by 0, and the given value by -1."""
    safe, by_zero, by_minus_one = _safe_divisor(w, dtype, y)
    result = w.binary(op, x, safe)
    if by_minus_one is not None:
        result = w.select(by_minus_one, negated, result)
    return w.select(by_zero, w.constant(0, x.element, x.lanes), result)


def _safe_divisor(w: Writer, dtype: Dtype, y: Value) -> tuple[Value, Value, Value | None]:
    one = w.constant(1, y.element, y.lanes)
    by_zero = w.compare("arith.cmpi", "eq", y, w.constant(0, y.element, y.lanes))
    safe = w.select(by_zero, one, y)
    if dtype.kind == "uint":
        return safe, by_zero, None
    by_minus_one = w.compare("arith.cmpi", "eq", y, w.constant(-1, y.element, y.lanes))
    return w.select(by_minus_one, one, safe), by_zero, by_minus_one


def _shift(op: str, beyond: Callable[[Writer, Value, int], Value]) -> Form:
    def form(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
        x, y = values
        bits = w.constant(dtype.bits, x.element, x.lanes)
        name = op if dtype.kind == "int" or op == "arith.shli" else "arith.shrui"
        inside = w.compare("arith.cmpi", "ult", y, bits)
        by = w.select(inside, y, w.constant(0, x.element, x.lanes))
        return w.select(inside, w.binary(name, x, by), beyond(w, x, dtype.bits))

    return form


def _zero(w: Writer, x: Value, bits: int) -> Value:
    return w.constant(0, x.element, x.lanes)


def _sign(w: Writer, x: Value, bits: int) -> Value:
    return w.binary("arith.shrsi", x, w.constant(bits - 1, x.element, x.lanes))


def _shift_right(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    beyond = _sign if dtype.kind == "int" else _zero
    return _shift("arith.shrsi", beyond)(w, dtype, values)


def _clamp(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    x, low, high = values
    return _extreme("min")(w, dtype, [_extreme("max")(w, dtype, [x, low]), high])


def _fma(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    x, y, z = values
    return w.emit(f"math.fma {x}, {y}, {z} : {x.type}", x.element, x.lanes)


def _select(w: Writer, dtype: Dtype, values: Sequence[Value]) -> Value:
    return w.select(*values)


# The code of each op, and its estimated cost.
FORMS: dict[Op, tuple[Form, int]] = {
    arithmetic.add: (_numeric("add"), 1),
    arithmetic.sub: (_numeric("sub"), 1),
    arithmetic.mul: (_numeric("mul"), 1),
    arithmetic.truediv: (_by_kind({"float": "arith.divf"}), 4),
    arithmetic.floordiv: (_floor_divide, 12),
    arithmetic.mod: (_remainder, 12),
    arithmetic.pow: (_function("pow"), 40),
    arithmetic.neg: (_negate, 1),
    arithmetic.abs: (_absolute, 1),
    arithmetic.less: (_comparison("olt", "lt"), 1),
    arithmetic.less_equal: (_comparison("ole", "le"), 1),
    arithmetic.greater: (_comparison("ogt", "gt"), 1),
    arithmetic.greater_equal: (_comparison("oge", "ge"), 1),
    arithmetic.equal: (_comparison("oeq", "eq"), 1),
    arithmetic.not_equal: (_comparison("une", "ne"), 1),
    arithmetic.bitwise_and: (_bits("andi"), 1),
    arithmetic.bitwise_or: (_bits("ori"), 1),
    arithmetic.bitwise_xor: (_bits("xori"), 1),
    arithmetic.bitwise_not: (_not, 1),
    arithmetic.shift_left: (_shift("arith.shli", _zero), 3),
    arithmetic.shift_right: (_shift_right, 3),
    arithmetic.logical_and: (_bits("andi"), 1),
    arithmetic.logical_or: (_bits("ori"), 1),
    arithmetic.logical_not: (_not, 1),
    arithmetic.minimum: (_extreme("min"), 1),
    arithmetic.maximum: (_extreme("max"), 1),
    arithmetic.clamp: (_clamp, 2),
    arithmetic.fma: (_fma, 1),
    arithmetic.where: (_select, 1),
    functions.exp: (_function("exp"), 12),
    functions.exp2: (_function("exp2"), 12),
    functions.expm1: (_function("expm1"), 16),
    functions.log: (_function("log"), 12),
    functions.log2: (_function("log2"), 12),
    functions.log1p: (_function("log1p"), 16),
    functions.sqrt: (_function("sqrt"), 5),
    functions.rsqrt: (_function("rsqrt"), 7),
    functions.tanh: (_function("tanh"), 14),
    functions.sin: (_function("sin"), 16),
    functions.cos: (_function("cos"), 16),
    functions.erf: (_function("erf"), 16),
    functions.sigmoid: (_function("sigmoid"), 14),
    functions.floor: (_function("floor"), 1),
    functions.ceil: (_function("ceil"), 1),
    functions.round: (_function("round"), 1),
    functions.trunc: (_function("trunc"), 1),
}


def _rule(form: Form, cost: int) -> Callable[[Emitter, fx.Node], TileValue]:
    def rule(emitter: Emitter, node: fx.Node) -> TileValue:
        dtypes = [operand.meta["type"].dtype for operand in arguments(node)]
        return emit_pointwise(emitter, node, form, cost, dtypes[-1])

    return rule


def emit_pointwise(
    emitter: Emitter, node: fx.Node, form: Form, cost: int, computed_in: Dtype
) -> TileValue:
    """Compute the lanes of a tile from those of its operands."""
    type = node.meta["type"]
    shape = emitter.sizes(type.shape)
    operands = [_operand(emitter, operand, shape) for operand in arguments(node)]

    def compute(coords: Coords) -> Value:
        values = [emitter.at(operand, broadcast_coords(operand, coords)) for operand in operands]
        lanes = max(value.lanes for value in values)
        values = [emitter.w.splat(value, lanes) if lanes else value for value in values]
        result = form(emitter.w, computed_in, values)
        return elements.round_to(emitter.w, result, type.dtype)

    weight = cost + sum(operand.weight for operand in operands)
    whole = [o.along for o in operands if o.weight and len(o.shape) == len(shape)]
    reads = merge_reads(operands, in_place=True)
    return TileValue(
        shape, type.dtype, compute, weight, reads, contiguous=whole[0] if whole else None
    )


def _operand(emitter: Emitter, node: Any, shape: Sequence[Any]) -> TileValue:
    """An operand; materialized if a broadcast would compute its lanes repeatedly."""
    tile = emitter.tile(node)
    if tile.weight > 1 and tile.buffer is None and is_repeated(tile, shape):
        tile = emitter.values[node] = emitter.materialize(node, tile, "broadcast to more elements")
    return tile


def is_repeated(tile: TileValue, shape: Sequence[Any]) -> bool:
    """Whether broadcasting a tile to a shape repeats its lanes."""
    padded = (1,) * (len(shape) - len(tile.shape)) + tile.shape
    return any(old == 1 and new != 1 for old, new in zip(padded, shape, strict=True))


def broadcast_coords(tile: TileValue, coords: Coords) -> Coords:
    """The coordinates in a tile of lanes of a shape it is broadcast to."""
    own = coords[len(coords) - len(tile.shape) :]
    return tuple(
        Coord(0) if size == 1 else coord for size, coord in zip(tile.shape, own, strict=True)
    )


RULES.update({op: _rule(form, cost) for op, (form, cost) in FORMS.items()})


def _to_dtype(emitter: Emitter, node: fx.Node) -> TileValue:
    return _convert(emitter, node, emit_cast)


def _bitcast(emitter: Emitter, node: fx.Node) -> TileValue:
    return _convert(emitter, node, bitcast)


def _convert(
    emitter: Emitter, node: fx.Node, convert: Callable[[Writer, Value, Dtype, Dtype], Value]
) -> TileValue:
    tile, to = emitter.tile(arguments(node)[0]), arguments(node)[1]
    assert isinstance(to, Dtype)

    def compute(coords: Coords) -> Value:
        return convert(emitter.w, emitter.at(tile, coords), tile.dtype, to)

    return TileValue(tile.shape, to, compute, tile.weight + 1, tile.reads, contiguous=tile.along)


RULES[casting.to_dtype] = _to_dtype
RULES[casting.bitcast] = _bitcast
