"""Rules of reductions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.triton import elements
from turbine.kernel.backends.triton.casting import convert, converted
from turbine.kernel.backends.triton.emitter import Condition, Emitter, Value, rule
from turbine.kernel.lang import reductions
from turbine.kernel.trace.op import Op, arguments, options
from turbine.kernel.trace.types import DTYPES, F32, I64, TileType

I32 = DTYPES["i32"]

# Functions of Triton: names and texts.
LARGER = (
    "larger",
    """\
def larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
)
SMALLER = (
    "smaller",
    """\
def smaller(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
)
PRODUCT = (
    "product",
    """\
def product(x, y):
    return x * y
""",
)
_FIRST = """\
def first_of_{name}(x, i, y, j):
    is_first = (x {sign} y) | ((x == y) & (i < j))
    is_nan = (x != x) & ((y == y) | (i < j))
    takes = is_nan | (is_first & (y == y))
    return tl.where(takes, x, y), tl.where(takes, i, j)
"""


def neutral(name: str, dtype: Dtype) -> bool | int | float:
    """The neutral element of a reduction."""
    if name in ("sum", "any"):
        return 0
    if name in ("prod", "all"):
        return 1
    is_most = name in ("max", "argmax")
    if dtype.kind == "float":
        return float("-inf" if is_most else "inf")
    if dtype.kind == "bool":
        return not is_most
    return elements.smallest(dtype) if is_most else elements.largest(dtype)


def fill(
    emitter: Emitter,
    value: Value,
    type: TileType,
    conditions: Sequence[Condition],
    number: bool | int | float,
    along: Sequence[int],
) -> Value:
    """A tile with its axes and some more, in which lanes that fail conditions hold a number."""
    axes = tuple(sorted({*value.axes, *(axis for one in conditions for axis in one.axes), *along}))
    if number == 0 and value.zero_unless is not None and set(conditions) <= value.zero_unless:
        conditions = []
    whole = emitter.dense(value, type, axes) if value.axes != axes else value
    if not conditions:
        return whole
    text = emitter.operand(whole, axes)
    filling = elements.literal(number, value.dtype)
    if elements.is_small(value.dtype):
        filling = emitter.scalar(Value("", (), value.dtype, number))
    mask = emitter.all_of(conditions, axes).text
    return Value(f"tl.where({mask}, {text}, {filling})", axes, value.dtype)


def rows_of(
    emitter: Emitter, node: fx.Node, name: str, dtype: Dtype
) -> tuple[Value, tuple[int, ...]]:
    """The operand of a reduction in a dtype, without masked-off lanes, and the axes to reduce."""
    operand, axes = arguments(node)[:2]
    type, given = operand.meta["type"], options(node)
    along = tuple(axis for axis in axes if not emitter.is_unit(type.shape[axis]))
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"], axes)
    value = emitter.value(operand)
    if value.dtype != dtype:
        value = converted(emitter, value, dtype)
    return fill(emitter, value, type.of(dtype), conditions, neutral(name, dtype), along), along


def without_axes(axes: Sequence[int], reduced: Sequence[int]) -> tuple[int, ...]:
    """The axes of a result, numbered as in its type."""
    return tuple(
        axis - len([one for one in reduced if one < axis]) for axis in axes if axis not in reduced
    )


def reduce_rows(
    emitter: Emitter, rows: Value, along: Sequence[int], call: str, node: fx.Node
) -> tuple[str, tuple[int, ...]]:
    """Apply a reduction, text with {0} for the tile and {1} for the axis, along some axes."""
    axes = arguments(node)[1]
    text = emitter.operand(rows, rows.axes)
    if rows.number is not None:
        text = emitter.scalar(rows)
    for axis in reversed(along):
        text = call.format(text, rows.axes.index(axis))
    return text, without_axes(rows.axes, axes)


_CALLS = {
    "sum": ("tl.sum({0}, {1})", None),
    "prod": ("tl.reduce({0}, {1}, product)", PRODUCT),
    "max": ("tl.reduce({0}, {1}, larger)", LARGER),
    "min": ("tl.reduce({0}, {1}, smaller)", SMALLER),
    "any": ("tl.max({0}, {1})", None),
    "all": ("tl.min({0}, {1})", None),
}


@rule(
    reductions.sum, reductions.prod, reductions.max, reductions.min, reductions.any, reductions.all
)
def _reduce(emitter: Emitter, node: fx.Node) -> Value:
    op, type = node.target, node.meta["type"]
    assert isinstance(op, Op)
    dtype = type.dtype
    wide = I32 if dtype.kind == "bool" else F32 if elements.is_small(dtype) else dtype
    rows, along = rows_of(emitter, node, op.name, wide)
    call, helper = _CALLS[op.name]
    if wide.kind != "float" and op.name in ("max", "min"):
        call, helper = f"tl.{op.name}({{0}}, {{1}})", None
    if helper is not None and along:
        emitter.call(*helper)
    text, axes = reduce_rows(emitter, rows, along, call, node)
    text = convert(emitter, text, wide, dtype)
    return emitter.assign(op.name, Value(text, axes, dtype))


@rule(reductions.argmax, reductions.argmin)
def _first_index(emitter: Emitter, node: fx.Node) -> Value:
    op, operand = node.target, arguments(node)[0]
    assert isinstance(op, Op)
    dtype = operand.meta["type"].dtype
    wide = I32 if dtype.kind == "bool" else F32 if elements.is_small(dtype) else dtype
    rows, along = rows_of(emitter, node, op.name, wide)
    if not along:
        return Value("0", (), I64, 0, 0)
    (axis,) = along
    type, given = operand.meta["type"], options(node)
    count = emitter.lane_count(type.shape[axis])
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"], along)
    lanes = fill(
        emitter,
        Value(emitter.lane(type.shape[axis]), (axis,), I32),
        type.of(I32),
        conditions,
        count,
        rows.axes,
    )
    name, sign = {"argmax": ("largest", ">"), "argmin": ("smallest", "<")}[op.name]
    function = emitter.call(f"first_of_{name}", _FIRST.format(name=name, sign=sign))
    place = rows.axes.index(axis)
    found, index = emitter.name(name), emitter.name("index")
    emitter.emit(f"{found}, {index} = tl.reduce(({rows.text}, {lanes.text}), {place}, {function})")
    text = f"tl.where({index} == {count}, 0, {index})" if conditions else index
    return emitter.assign(
        op.name, Value(text, without_axes(rows.axes, arguments(node)[1]), I64, most=count)
    )
