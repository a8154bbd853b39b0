"""The rule of sorts: a merge sort of the valid lanes of each row.

For a small top k, each lane is inserted into a sorted list of the k best so far instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine.algebra import Expr, as_expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree.emitter import RULES, Emitter
from turbine.kernel.backends.iree.memory import mask_at
from turbine.kernel.backends.iree.tiles import Coord, Coords, ScratchBuffer, TileValue
from turbine.kernel.lang import ordering
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import I64
from turbine.mlir.writer import Index, Value, Writer

# The largest k that is selected by insertion; for a larger one, the row is sorted.
_LARGEST_INSERTED = 64


@dataclass
class Row:
    """A row to be sorted: two copies of its values and indices, each merged into the other."""

    emitter: Emitter
    values: ScratchBuffer
    places: ScratchBuffer
    descending: bool

    def get(self, side: Index, place: Index) -> tuple[Value, Value]:
        """Load a value and its original index."""
        coords = (Coord(side), Coord(place))
        shape = (2, 0)
        return (
            self.emitter.tile_in(self.values, shape).compute(coords),
            self.emitter.tile_in(self.places, shape).compute(coords),
        )

    def put(self, side: Index, place: Index, value: Value, origin: Value) -> None:
        """Store a value and its original index."""
        coords = (Coord(side), Coord(place))
        self.emitter.put(self.values, coords, value)
        self.emitter.put(self.places, coords, origin)


def _sort(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    operand, axis, descending, count = arguments(node)
    assert isinstance(axis, int)
    assert isinstance(count, Expr)
    tile, type = emitter.tile(operand), operand.meta["type"]
    bounds = list(dict.fromkeys((*operand.meta["valid"].bounds, *options(node)["bounds"])))
    extents = emitter.extents(type.shape, bounds)
    masks = [emitter.tile(mask) for mask in options(node)["masks"]]
    limit = emitter.index(count)
    few = isinstance(limit, int) and 0 < limit <= _LARGEST_INSERTED
    pair = (as_expr(1), count) if few else (as_expr(2), type.shape[axis])
    row = Row(
        emitter, emitter.allocate(pair, type.dtype), emitter.allocate(pair, I64), bool(descending)
    )
    types = node.meta["types"]
    buffers = [emitter.allocate(one.shape, one.dtype) for one in types]
    others = [extent for place, extent in enumerate(extents) if place != axis]

    def body(coords: Coords) -> None:
        w = emitter.w
        if few:
            kept = _select_first(emitter, row, tile, masks, extents[axis], coords, axis, limit)
            _store_results(emitter, row, w.index(0), kept, buffers, coords, axis)
            return
        length = _gather(emitter, row, tile, masks, extents[axis], coords, axis)
        side = _merge_runs(w, row, length, type.dtype)
        _store_results(emitter, row, side, w.min(length, limit), buffers, coords, axis)

    emitter.sweep(others, 0, body)
    return [emitter.tile_in(r, emitter.sizes(t.shape)) for r, t in zip(buffers, types, strict=True)]


def _gather(
    emitter: Emitter,
    row: Row,
    tile: TileValue,
    masks: list[TileValue],
    extent: Any,
    others: Coords,
    axis: int,
) -> Value:
    """Copy the valid lanes to the front; return their number."""
    w = emitter.w
    first, end = extent
    with w.loop(first, end, 1, [w.index(0)]) as loop, emitter.scope():
        (length,) = loop.carried
        coords = (*others[:axis], Coord(loop.counter), *others[axis:])
        origin = w.convert("arith.index_cast", loop.counter, "i64")
        row.put(0, length, emitter.at(tile, coords), origin)
        mask = mask_at(emitter, masks, coords)
        more = w.index(w.add(length, 1))
        loop.yielded = [more if mask is None else w.select(mask, more, length)]
    return loop.results[0]


def _select_first(
    emitter: Emitter,
    row: Row,
    tile: TileValue,
    masks: list[TileValue],
    extent: Any,
    others: Coords,
    axis: int,
    limit: Index,
) -> Value:
    """Select the first valid lanes in sort order; return their number."""
    w = emitter.w
    first, end = extent
    with w.loop(first, end, 1, [w.index(0)]) as loop, emitter.scope():
        (length,) = loop.carried
        coords = (*others[:axis], Coord(loop.counter), *others[axis:])
        value = emitter.at(tile, coords)
        last, _ = row.get(0, w.max(w.sub(length, 1), 0))
        is_open = w.compare("arith.cmpi", "slt", length, w.index(limit))
        enters = w.binary(
            "arith.ori", is_open, _sorts_before(w, tile.dtype, value, last, row.descending)
        )
        mask = mask_at(emitter, masks, coords)
        if mask is not None:
            enters = w.binary("arith.andi", enters, mask)
        longer = w.index(w.min(w.add(length, 1), limit))
        with w.branch(enters), emitter.scope():
            origin = w.convert("arith.index_cast", loop.counter, "i64")
            _insert(w, row, tile.dtype, (value, origin), length, longer)
        loop.yielded = [longer if mask is None else w.select(mask, longer, length)]
    return loop.results[0]


def _insert(
    w: Writer, row: Row, dtype: Dtype, new: tuple[Value, Value], length: Value, longer: Value
) -> None:
    """Insert a value in order; later ones move by one, and the last may drop out."""
    moving = w.constant(False, "i1")
    with w.loop(0, longer, 1, [*new, moving]) as loop, row.emitter.scope():
        value, origin, moves = loop.carried
        other, other_origin = row.get(0, loop.counter)
        is_end = w.compare("arith.cmpi", "sge", loop.counter, length)
        goes = w.binary("arith.ori", is_end, _sorts_before(w, dtype, value, other, row.descending))
        goes = w.binary("arith.ori", goes, moves)
        row.put(0, loop.counter, w.select(goes, value, other), w.select(goes, origin, other_origin))
        loop.yielded = [
            w.select(goes, other, value),
            w.select(goes, other_origin, origin),
            goes,
        ]


def _merge_runs(w: Writer, row: Row, length: Value, dtype: Dtype) -> Value:
    """Merge runs of 1, 2, 4 ... until one is left; return the copy it is in."""
    emitter, one, zero = row.emitter, w.index(1), w.index(0)
    side, width = w.fresh("index"), w.fresh("index")
    inner_side, inner_width = w.fresh("index"), w.fresh("index")
    w.line(
        f"{side}, {width} = scf.while ({inner_side} = {zero}, {inner_width} = {one})"
        " : (index, index) -> (index, index) {"
    )
    more = w.compare("arith.cmpi", "slt", inner_width, length)
    w.line(f"scf.condition({more}) {inner_side}, {inner_width} : index, index")
    w.line("} do {")
    own_side, own_width = w.fresh("index"), w.fresh("index")
    w.line(f"^bb0({own_side}: index, {own_width}: index):")
    with emitter.scope():
        to = w.index(w.sub(1, own_side))
        both = w.index(w.mul(own_width, 2))
        with w.loop(0, length, both) as loop, emitter.scope():
            _merge(w, row, dtype, (own_side, to), loop.counter, own_width, length)
        w.line(f"scf.yield {to}, {both} : index, index")
    w.line("}")
    return side


def _merge(
    w: Writer,
    row: Row,
    dtype: Dtype,
    sides: tuple[Value, Value],
    start: Value,
    width: Value,
    length: Value,
) -> None:
    """Merge two adjacent runs."""
    of, to = sides
    middle = w.index(w.min(w.add(start, width), length))
    end = w.index(w.min(w.add(middle, width), length))
    with w.loop(start, end, 1, [start, middle]) as loop, row.emitter.scope():
        left, right = loop.carried
        last = w.sub(length, 1)
        x, x_origin = row.get(of, w.min(left, last))
        y, y_origin = row.get(of, w.min(right, last))
        has_left = w.compare("arith.cmpi", "slt", left, middle)
        no_right = w.compare("arith.cmpi", "sge", right, end)
        # The sort is stable: of equal values the left one comes first.
        later = w.binary("arith.xori", _sorts_before(w, dtype, y, x, row.descending), _true(w))
        take_left = w.binary("arith.andi", has_left, w.binary("arith.ori", no_right, later))
        row.put(
            to, loop.counter, w.select(take_left, x, y), w.select(take_left, x_origin, y_origin)
        )
        next_left = w.select(take_left, w.index(w.add(left, 1)), left)
        next_right = w.select(take_left, right, w.index(w.add(right, 1)))
        loop.yielded = [next_left, next_right]


def _true(w: Writer) -> Value:
    return w.constant(True, "i1")


def _sorts_before(w: Writer, dtype: Dtype, x: Value, y: Value, descending: bool) -> Value:
    """Whether x sorts before y; nan is the largest."""
    if dtype.kind != "float":
        sign = "s" if dtype.kind == "int" else "u"
        return w.compare("arith.cmpi", f"{sign}{'gt' if descending else 'lt'}", x, y)
    less = "sgt" if descending else "slt"
    return w.compare("arith.cmpi", less, _order_key(w, x), _order_key(w, y))


def _order_key(w: Writer, x: Value) -> Value:
    """An integer in the order of floats, nan last; comparing floats takes subnormals for zeros."""
    width = int(x.element.removeprefix("b").removeprefix("f"))
    of = f"i{width}"
    bits = w.convert("arith.bitcast", x, of)
    largest = w.constant(2 ** (width - 1) - 1, of)
    sign = w.binary("arith.shrsi", bits, w.constant(width - 1, of))
    key = w.binary("arith.xori", bits, w.binary("arith.andi", sign, largest))
    # The key of -0.0, which equals 0.0, is -1.
    is_zero = w.compare("arith.cmpi", "eq", key, w.constant(-1, of))
    is_nan = w.compare("arith.cmpf", "uno", x, x)
    return w.select(is_nan, largest, w.select(is_zero, w.constant(0, of), key))


def _store_results(
    emitter: Emitter,
    row: Row,
    side: Value,
    count: Index,
    buffers: list[ScratchBuffer],
    others: Coords,
    axis: int,
) -> None:
    """Copy the first values of a sorted row to the results."""
    with emitter.w.loop(0, count) as loop, emitter.scope():
        coords = (*others[:axis], Coord(loop.counter), *others[axis:])
        for buffer, value in zip(buffers, row.get(side, loop.counter), strict=True):
            emitter.put(buffer, coords, value)


RULES[ordering.sort_op] = _sort
