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

from turbine.algebra import Expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.triton import elements
from turbine.kernel.backends.triton.casting import convert
from turbine.kernel.backends.triton.emitter import Emitter, Value, rule, tight
from turbine.kernel.backends.triton.reductions import fill
from turbine.kernel.lang import ordering
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import F32, I64

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
class _Rows:
    """The shape of a tile that is sorted along one of its axes, which is moved to the end."""

    emitter: Emitter
    shape: tuple[Expr, ...]
    axis: int

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of its tensor."""
        return self.emitter.axes_of(self.shape)

    @property
    def last(self) -> int:
        """The place of the sorted axis at the end."""
        return len(self.axes) - 1

    def move_to_end(self, text: str) -> str:
        """A tensor with the sorted axis at the end."""
        place = self.axes.index(self.axis)
        order = [n for n in range(len(self.axes)) if n != place] + [place]
        return text if place == self.last else f"tl.permute({text}, {order})"

    def move_back(self, text: str) -> str:
        """A tensor with its last axis in the place of the sorted one."""
        place = self.axes.index(self.axis)
        order = list(range(self.last))
        order.insert(place, self.last)
        return text if place == self.last else f"tl.permute({text}, {order})"

    def places(self, count: Expr) -> str:
        """The first places of each row."""
        lane = self.emitter.placed(self.emitter.lane(count), [self.last], range(len(self.axes)))
        others = [self.shape[one] for one in self.axes if one != self.axis]
        return f"tl.broadcast_to({lane}, {self.emitter.list_of([*others, count])})"

    def assign(self, name: str, text: str, dtype: Dtype) -> str:
        """The variable of a tensor."""
        return self.emitter.assign(name, Value(text, self.axes, dtype)).text

    def result(self, text: str, dtype: Dtype, count: Expr) -> Value:
        """A tensor with so many elements of each row, as a tile."""
        text = self.move_back(text)
        if not self.emitter.is_unit(count):
            return self.emitter.assign("sorted", Value(text, self.axes, dtype))
        axes = tuple(one for one in self.axes if one != self.axis)
        shape = self.emitter.counts(self.shape, axes)
        text = f"tl.reshape({text}, {shape})" if axes else f"tl.max({text}, 0)"
        return self.emitter.assign("sorted", Value(text, axes, dtype))


@rule(ordering.sort_op)
def _sort(emitter: Emitter, node: fx.Node) -> list[Value]:
    operand, axis, descending, count = arguments(node)
    type, size = operand.meta["type"], operand.meta["type"].shape[axis]
    if emitter.is_unit(size):
        return [emitter.value(operand), Value("0", (), I64, 0, 0)]
    lanes = emitter.lane_count(size)
    if lanes > 1 << _INDEX_BITS:
        raise emitter.error(f"a sort of {lanes} elements", "sort at most 2**20")
    rows, dtype = _Rows(emitter, type.shape, axis), type.dtype
    whole = emitter.dense(emitter.value(operand), type)
    row = rows.assign("row", rows.move_to_end(tight(whole.text)), dtype)
    is_last = rows.assign("is_last", rows.move_to_end(_is_masked(emitter, node).text), I64)
    places = rows.assign("lanes", f"{rows.places(size)}.to(tl.int64)", I64)
    order = _order(emitter, row, dtype, bool(descending), is_last, places, rows.last)
    if emitter.lane_count(count) != lanes:
        order = rows.assign("order", f"tl.gather({order}, {rows.places(count)}, {rows.last})", I64)
    found = _gather(row, order, dtype, rows.last)
    return [rows.result(found, dtype, count), rows.result(order, I64, count)]


def _is_masked(emitter: Emitter, node: fx.Node) -> Value:
    """1 for lanes along the sorted axis that are masked off, 0 for others."""
    operand, axis, *_ = arguments(node)
    type, given = operand.meta["type"].of(I64), options(node)
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"], [axis])
    zero = Value("tl.full([], 0, tl.int64)", (), I64)
    return fill(emitter, zero, type, conditions, 1, emitter.axes_of(type.shape))


def _gather(row: str, order: str, dtype: Dtype, axis: int) -> str:
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
