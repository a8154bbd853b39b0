"""Rules of constants, elementwise ops and conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from turbine.algebra import Expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.triton import elements
from turbine.kernel.backends.triton.casting import convert
from turbine.kernel.backends.triton.emitter import (
    FLOOR_DIVIDE,
    RULES,
    Condition,
    Emitter,
    Value,
    rule,
    tight,
    union_of,
)
from turbine.kernel.lang import arithmetic, constants, creation, functions
from turbine.kernel.trace.op import Op, arguments
from turbine.kernel.trace.types import F32, I64

# Writes an op on operands of one dtype.
Form = Callable[[Emitter, Dtype, Sequence[str]], str]


@rule(constants.constant)
def _constant(emitter: Emitter, node: fx.Node) -> Value:
    _, dtype, number = arguments(node)
    emitter.type(dtype)
    most = abs(int(number)) if dtype == I64 else None
    zero: frozenset[Condition] | None = frozenset() if number == 0 else None
    return Value(elements.literal(number, dtype), (), dtype, number, most, zero)


@rule(constants.from_index)
def _from_index(emitter: Emitter, node: fx.Node) -> Value:
    expr, dtype = arguments(node)
    assert isinstance(expr, Expr)
    number = emitter.facts.simplify(expr).number
    if number is not None:
        return Value(elements.literal(number, dtype), (), dtype, number, abs(number))
    value = Value(emitter.expr(expr), (), dtype, most=emitter.magnitude(expr))
    if value.is_narrow:
        return emitter.assign("index", value)
    text = _cast(emitter, emitter.expr(expr, is_wide=True), dtype)
    return emitter.assign("index", Value(text, (), dtype))


@rule(creation.arange)
def _arange(emitter: Emitter, node: fx.Node) -> Value:
    size, start, dtype = arguments(node)
    ends = emitter.magnitude(start), emitter.magnitude(start + size)
    most = None if None in ends else max(end for end in ends if end is not None)
    if emitter.is_unit(size):
        return _from_expr(emitter, start, dtype, most)
    text = emitter.lane(size)
    value = Value(text, (0,), dtype, most=most)
    if emitter.facts.simplify(start).number != 0:
        first = emitter.factor(start, is_wide=not value.is_narrow)
        value = Value(f"{first} + {text}", (0,), dtype, most=most)
        text = value.text
    if not value.is_narrow:
        value = Value(_cast(emitter, text, dtype), (0,), dtype)
    return emitter.assign("arange", value) if value.text != emitter.lane(size) else value


def _from_expr(emitter: Emitter, expr: Expr, dtype: Dtype, most: int | None) -> Value:
    number = emitter.facts.simplify(expr).number
    if number is not None:
        return Value(elements.literal(number, dtype), (), dtype, number, abs(number))
    text = _cast(emitter, emitter.expr(expr, is_wide=True), dtype)
    return emitter.assign("arange", Value(text, (), dtype))


def _cast(emitter: Emitter, text: str, dtype: Dtype) -> str:
    """An integer in a dtype."""
    if dtype.kind == "float" and dtype.bits == 8:
        return convert(emitter, f"tl.cast({text}, tl.float32)", F32, dtype)
    return f"tl.cast({text}, {emitter.type(dtype)})"


# Elementwise ops


def _operator(symbol: str) -> Form:
    return lambda emitter, dtype, operands: f" {symbol} ".join(map(tight, operands))


def _function(text: str) -> Form:
    return lambda emitter, dtype, operands: text.format(*operands)


def _helper(name: str, text: str, of_floats: str | None = None) -> Form:
    def form(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
        if dtype.kind == "float" and of_floats is not None:
            return f"{emitter.call(f'{name}_floats', of_floats)}({', '.join(operands)})"
        return f"{emitter.call(name, text)}({', '.join(operands)})"

    return form


def _extreme(name: str, of_bools: str) -> Form:
    def form(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
        if dtype.kind == "bool":
            return _operator(of_bools)(emitter, dtype, operands)
        nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.kind == "float" else ""
        return f"tl.{name}({', '.join(operands)}{nan})"

    return form


def _comparison(symbol: str) -> Form:
    def form(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
        if dtype.kind == "bool":
            operands = [f"tl.cast({one}, tl.int8)" for one in operands]
        return _operator(symbol)(emitter, dtype, operands)

    return form


def _absolute(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
    return operands[0] if dtype.kind == "uint" else f"tl.abs({operands[0]})"


def _clamp(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
    x, low, high = operands
    nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.kind == "float" else ""
    return f"tl.minimum(tl.maximum({x}, {low}{nan}), {high}{nan})"


def _shift(name: str, text: str) -> Form:
    def form(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
        if operands[1].isdigit() and int(operands[1]) < dtype.bits:
            return _operator("<<" if name == "shift_left" else ">>")(emitter, dtype, operands)
        return f"{emitter.call(name, text)}({', '.join(operands)}, {dtype.bits})"

    return form


def _shift_right(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
    signed, unsigned = (
        ("shift_right", _ARITHMETIC_SHIFT),
        ("shift_right_unsigned", _LOGICAL_SHIFT),
    )
    return _shift(*(signed if dtype.kind == "int" else unsigned))(emitter, dtype, operands)


def _not(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
    if dtype.kind == "uint":
        return f"{tight(operands[0])} ^ {elements.largest(dtype)}"
    return f"~{tight(operands[0])}"


def _square_root(emitter: Emitter, dtype: Dtype, operands: Sequence[str]) -> str:
    # The plain one is approximate for f32.
    return f"tl.{'sqrt_rn' if dtype.bits == 32 else 'sqrt'}({operands[0]})"


_FLOOR_DIVIDE_FLOATS = """\
def floor_divide_floats(x, y):
    rest = libdevice.fmod(x, y)
    quotient = (x - rest) / y
    quotient = tl.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    below = tl.floor(quotient)
    whole = tl.where(quotient - below > 0.5, below + 1, below)
    signed = tl.where(quotient == 0, libdevice.copysign(quotient * 0, x / y), whole)
    return tl.where(y == 0, x / y, signed)
"""
_REMAINDER = """\
def remainder(x, y):
    safe = tl.where(y == 0, 1, y)
    rest = x % safe
    is_below = (rest != 0) & ((rest < 0) != (safe < 0))
    return tl.where(y == 0, 0, tl.where(is_below, rest + safe, rest))
"""
_REMAINDER_FLOATS = """\
def remainder_floats(x, y):
    rest = libdevice.fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
"""
_SHIFT_LEFT = """\
def shift_left(x, y, bits: tl.constexpr):
    is_inside = (y >= 0) & (y < bits)
    return tl.where(is_inside, x << tl.where(is_inside, y, 0), 0)
"""
_ARITHMETIC_SHIFT = """\
def shift_right(x, y, bits: tl.constexpr):
    is_inside = (y >= 0) & (y < bits)
    return x >> tl.where(is_inside, y, bits - 1)
"""
_LOGICAL_SHIFT = """\
def shift_right_unsigned(x, y, bits: tl.constexpr):
    is_inside = y < bits
    return tl.where(is_inside, x >> tl.where(is_inside, y, 0), 0)
"""

_FORMS: dict[Op, Form] = {
    arithmetic.add: _operator("+"),
    arithmetic.sub: _operator("-"),
    arithmetic.mul: _operator("*"),
    arithmetic.truediv: _operator("/"),
    arithmetic.floordiv: _helper("floor_divide", FLOOR_DIVIDE, _FLOOR_DIVIDE_FLOATS),
    arithmetic.mod: _helper("remainder", _REMAINDER, _REMAINDER_FLOATS),
    arithmetic.pow: _function("libdevice.pow({0}, {1})"),
    arithmetic.neg: lambda emitter, dtype, operands: f"-{tight(operands[0])}",
    arithmetic.abs: _absolute,
    arithmetic.fma: _function("tl.fma({0}, {1}, {2})"),
    arithmetic.minimum: _extreme("minimum", "&"),
    arithmetic.maximum: _extreme("maximum", "|"),
    arithmetic.clamp: _clamp,
    arithmetic.less: _comparison("<"),
    arithmetic.less_equal: _comparison("<="),
    arithmetic.greater: _comparison(">"),
    arithmetic.greater_equal: _comparison(">="),
    arithmetic.equal: _comparison("=="),
    arithmetic.not_equal: _comparison("!="),
    arithmetic.bitwise_and: _operator("&"),
    arithmetic.bitwise_or: _operator("|"),
    arithmetic.bitwise_xor: _operator("^"),
    arithmetic.bitwise_not: _not,
    arithmetic.logical_and: _operator("&"),
    arithmetic.logical_or: _operator("|"),
    arithmetic.logical_not: _not,
    arithmetic.shift_left: _shift("shift_left", _SHIFT_LEFT),
    arithmetic.shift_right: _shift_right,
    functions.exp: _function("libdevice.exp({0})"),
    functions.exp2: _function("tl.exp2({0})"),
    functions.expm1: _function("libdevice.expm1({0})"),
    functions.log: _function("libdevice.log({0})"),
    functions.log2: _function("libdevice.log2({0})"),
    functions.log1p: _function("libdevice.log1p({0})"),
    functions.sqrt: _square_root,
    functions.rsqrt: _function("tl.rsqrt({0})"),
    functions.tanh: _function("libdevice.tanh({0})"),
    functions.sin: _function("libdevice.sin({0})"),
    functions.cos: _function("libdevice.cos({0})"),
    functions.erf: _function("tl.erf({0})"),
    functions.sigmoid: _function("1.0 / (1.0 + libdevice.exp(-({0})))"),
    functions.floor: _function("tl.floor({0})"),
    functions.ceil: _function("tl.ceil({0})"),
    functions.round: _function("libdevice.rint({0})"),
    functions.trunc: _function("libdevice.trunc({0})"),
}
# Ops on indices whose results have at most so large a magnitude.
_MAGNITUDES: dict[Op, Callable[..., int]] = {
    arithmetic.add: lambda x, y: x + y,
    arithmetic.sub: lambda x, y: x + y,
    arithmetic.mul: lambda x, y: x * y,
    arithmetic.floordiv: lambda x, y: x + 1,
    arithmetic.mod: lambda x, y: y,
    arithmetic.neg: lambda x: x,
    arithmetic.abs: lambda x: x,
    arithmetic.minimum: max,
    arithmetic.maximum: max,
}


def _pointwise(emitter: Emitter, node: fx.Node) -> Value:
    op = node.target
    assert isinstance(op, Op)
    type = node.meta["type"]
    values = [emitter.aligned(operand, type.rank) for operand in arguments(node)]
    axes = union_of(values)
    dtype, most = values[0].dtype, None
    if dtype == I64 and op in _MAGNITUDES and None not in (known := [v.most for v in values]):
        most = _MAGNITUDES[op](*known)
    result = Value("", axes, type.dtype, most=most)
    # Indices in 32 bits stay so if the result does.
    is_compared = type.dtype.kind == "bool" and all(value.is_narrow for value in values)
    is_exact = not result.is_narrow and not is_compared
    texts = _operands(emitter, values, axes, is_exact)
    if elements.is_small(dtype):
        wide = [_widen(emitter, one, value) for one, value in zip(texts, values, strict=True)]
        text = _FORMS[op](emitter, F32, wide)
        if type.dtype.kind == "float":
            text = convert(emitter, text, F32, type.dtype)
    else:
        text = _FORMS[op](emitter, dtype, texts)
    return emitter.assign(op.name, Value(text, axes, type.dtype, most=most))


def _operands(
    emitter: Emitter, values: Sequence[Value], axes: Sequence[int], is_exact: bool
) -> list[str]:
    """The operands of an op; if all are constants, the first one as a tensor."""
    texts = [emitter.operand(value, axes, is_exact=is_exact) for value in values]
    if all(value.number is not None for value in values):
        texts[0] = emitter.scalar(values[0])
    return texts


def _widen(emitter: Emitter, text: str, value: Value) -> str:
    """An operand of a small float dtype in f32."""
    if value.number is not None and not text.startswith("tl.full"):
        return text
    return convert(emitter, text, value.dtype, F32)


for _op in _FORMS:
    RULES[_op] = _pointwise


@rule(arithmetic.where)
def _where(emitter: Emitter, node: fx.Node) -> Value:
    rank = node.meta["type"].rank
    condition, x, y = (emitter.aligned(operand, rank) for operand in arguments(node))
    axes = union_of([condition, x, y])
    most = max(x.most, y.most) if x.most is not None and y.most is not None else None
    result = Value("", axes, x.dtype, most=most)
    chosen = emitter.operand(condition, axes)
    if condition.number is not None:
        chosen = emitter.scalar(condition)
    texts = _operands(emitter, [x, y], axes, not result.is_narrow)
    if x.dtype.kind == "float" and x.dtype.bits < 32:
        texts = [
            emitter.scalar(value) if value.number is not None else text
            for value, text in zip((x, y), texts, strict=True)
        ]
    text = f"tl.where({chosen}, {texts[0]}, {texts[1]})"
    return emitter.assign("where", Value(text, axes, x.dtype, most=most))
