"""Rules of sorts.

Note [Sorting by keys]
Triton sorts numbers, without indices. So an element becomes a key of 32 bits that is ordered as
the element is, and a key and an index are one integer: it holds, from the high bits on, whether the
lane is masked off, the key, and the index. The sort of these is stable. Elements of 64 bits are
sorted by their low words first, then by their high words.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.triton import elements
from turbine.kernel.backends.triton.casting import convert
from turbine.kernel.backends.triton.emitter import Emitter, Value, rule
from turbine.kernel.backends.triton.reductions import fill
from turbine.kernel.lang import ordering
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import DTYPES, F32, I64

I32 = DTYPES["i32"]
# Bits of the index in a sorted number.
_INDEX_BITS = 20

_KEY_OF_FLOATS = """\
def sort_key_of_floats(x):
    x = tl.where(x == 0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    bits = tl.where(x != x, 0x7FFFFFFF, bits)
    return bits.to(tl.int64) + 0x80000000
"""
_KEY_OF_DOUBLES = """\
def sort_key_of_doubles(x):
    x = tl.where(x == 0, x * 0, x)
    bits = x.to(tl.int64, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
    return tl.where(x != x, 0x7FFFFFFFFFFFFFFF, bits)
"""
_SORTED_PLACES = """\
def sorted_places(key, is_last, places, axis: tl.constexpr):
    packed = tl.sort((is_last << 52) | (key << 20) | places, axis)
    return packed & 0xFFFFF
"""


@dataclass(frozen=True)
class Row:
    """A tile that is sorted along its last tensor axis."""

    text: str
    axes: tuple[int, ...]  # of the tile, with the sorted one last
    axis: int


@rule(ordering.sort_op)
def _sort(emitter: Emitter, node: fx.Node) -> list[Value]:
    operand, axis, descending, count = arguments(node)
    type, given = operand.meta["type"], options(node)
    dtype, size = type.dtype, type.shape[axis]
    if emitter.is_unit(size):
        return [emitter.value(operand), Value("0", (), I64, 0, 0)]
    lanes = emitter.lane_count(size)
    if lanes > 1 << _INDEX_BITS:
        raise emitter.error(f"a sort of {lanes} elements", "sort at most 2**20")
    axes = emitter.axes_of(type.shape)
    last = len(axes) - 1
    value = emitter.assign("row", emitter.dense(emitter.value(operand), type))
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"], [axis])
    flags = fill(
        emitter, Value("tl.full([], 0, tl.int64)", (), I64), type.of(I64), conditions, 1, axes
    )
    row = _last_axis(emitter, value.text, axes, axis)
    is_last = emitter.assign(
        "is_last", Value(_last_axis(emitter, flags.text, axes, axis), axes, I64)
    )
    row_name = emitter.assign("row", Value(row, axes, dtype)).text
    ordered = (*(one for one in axes if one != axis), axis)
    shape = "[" + ", ".join(str(emitter.lane_count(type.shape[one])) for one in ordered) + "]"
    lane = emitter.lane(size)
    places = f"[{'None, ' * last}:]" if last else ""
    lane_text = emitter.assign(
        "lanes", Value(f"tl.broadcast_to({lane}{places}, {shape}).to(tl.int64)", axes, I64)
    ).text
    order = _order(emitter, row_name, dtype, bool(descending), is_last.text, lane_text, last)
    kept = emitter.lane_count(count)
    if kept != lanes:
        front = emitter.lane(count)
        short = shape.replace(f"{lanes}]", f"{kept}]")
        index = f"tl.broadcast_to({front}{places}, {short})"
        order = emitter.assign(
            "order", Value(f"tl.gather({order}, {index}, {last})", axes, I64)
        ).text
    found = _gather(emitter, row_name, order, dtype, last)
    texts = [_first_axes(text, axes, axis) for text in (found, order)]
    unit = emitter.is_unit(count)
    results = []
    for text, of in zip(texts, (dtype, I64), strict=True):
        kept_axes = axes
        if unit:
            text, kept_axes = (
                f"tl.reshape({text}, {_shape_without(emitter, type, axes, axis)})",
                (tuple(one for one in axes if one != axis)),
            )
            if not kept_axes:
                text = f"tl.max({texts[0 if of == dtype else 1]}, 0)"
        results.append(emitter.assign("sorted", Value(text, kept_axes, of)))
    return results


def _shape_without(emitter: Emitter, type: object, axes: tuple[int, ...], axis: int) -> str:
    return emitter.counts(type.shape, [one for one in axes if one != axis])  # type: ignore[attr-defined]


def _last_axis(emitter: Emitter, text: str, axes: tuple[int, ...], axis: int) -> str:
    """A tensor with one of its axes last."""
    place = axes.index(axis)
    if place == len(axes) - 1:
        return text
    order = [n for n in range(len(axes)) if n != place] + [place]
    return f"tl.permute({text}, {order})"


def _first_axes(text: str, axes: tuple[int, ...], axis: int) -> str:
    """A tensor with its last axis back in its place."""
    place, last = axes.index(axis), len(axes) - 1
    if place == last:
        return text
    order = list(range(last))
    order.insert(place, last)
    return f"tl.permute({text}, {order})"


def _gather(emitter: Emitter, row: str, order: str, dtype: Dtype, axis: int) -> str:
    """The elements of rows at some places."""
    index = f"{order}.to(tl.int32)"
    if dtype.kind == "bool":
        return f"tl.gather({row}.to(tl.int8), {index}, {axis}) != 0"
    return f"tl.gather({row}, {index}, {axis})"


def _order(
    emitter: Emitter, row: str, dtype: Dtype, descending: bool, is_last: str, lanes: str, axis: int
) -> str:
    """The places of the sorted elements: see Note [Sorting by keys]."""
    sort = emitter.call("sorted_places", _SORTED_PLACES)
    if dtype.bits < 64:
        key = emitter.assign(
            "key", Value(_flip(_small_key(emitter, row, dtype), descending), (), I64)
        )
        text = f"{sort}({key.text}, {is_last}, {lanes}, {axis})"
        return emitter.assign("order", Value(text, (), I64)).text
    bits = row
    if dtype.kind == "float":
        bits = f"{emitter.call('sort_key_of_doubles', _KEY_OF_DOUBLES)}({row})"
    bits = emitter.assign("bits", Value(f"{bits}.to(tl.int64)", (), I64)).text
    offset = "" if dtype.kind == "uint" else " ^ 0x80000000"
    low = emitter.assign("low", Value(_flip(f"{bits} & 0xFFFFFFFF", descending), (), I64)).text
    high = _flip(f"(({bits} >> 32) & 0xFFFFFFFF){offset}", descending)
    high = emitter.assign("high", Value(high, (), I64)).text
    by_low = emitter.assign(
        "by_low", Value(f"{sort}({low}, {is_last}, {lanes}, {axis})", (), I64)
    ).text
    keys = [f"tl.gather({one}, {by_low}.to(tl.int32), {axis})" for one in (high, is_last)]
    by_high = f"{sort}({keys[0]}, {keys[1]}, {lanes}, {axis})"
    by_high = emitter.assign("by_high", Value(by_high, (), I64)).text
    text = f"tl.gather({by_low}, {by_high}.to(tl.int32), {axis})"
    return emitter.assign("order", Value(text, (), I64)).text


def _small_key(emitter: Emitter, row: str, dtype: Dtype) -> str:
    """Keys of 32 bits, as 64-bit integers that are not negative."""
    if dtype.kind == "float":
        function = emitter.call("sort_key_of_floats", _KEY_OF_FLOATS)
        return f"{function}({convert(emitter, row, dtype, F32)})"
    wide = f"{row}.to(tl.int64)"
    return f"{wide} - ({elements.smallest(dtype)})" if dtype.kind == "int" else wide


def _flip(key: str, descending: bool) -> str:
    return f"0xFFFFFFFF - ({key})" if descending else key
