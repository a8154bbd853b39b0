"""The rule of sorts: a radix sort of the valid lanes of each row.

For a small top k, each lane is inserted into a sorted list of the k best so far instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import fx

from turbine.algebra import Expr, as_expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.emitter import RULES, Emitter, Extent, lanes_for
from turbine.kernel.backends.iree.memory import mask_at
from turbine.kernel.backends.iree.tiles import Coord, Coords, ScratchBuffer, TileValue
from turbine.kernel.lang import ordering
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import DTYPES, I64
from turbine.mlir.writer import Index, Value, Writer

# The largest k that is selected by insertion; for a larger one, the row is sorted.
_LARGEST_INSERTED = 64
# Bits of a key that a pass sorts by.
_DIGIT = 8
_BUCKETS = 1 << _DIGIT


@dataclass
class Keys:
    """Integers in the order of the values, and their places in the row.

    There are two copies of both; a pass moves one to the other, in the order of a digit.
    """

    emitter: Emitter
    keys: ScratchBuffer
    places: ScratchBuffer
    values: ScratchBuffer
    counts: ScratchBuffer  # of keys for each digit and pass, then where the next of them goes
    passes: int

    def digit(self, key: Value, step: int) -> Value:
        """A digit of a key."""
        w = self.emitter.w
        shifted = w.binary("arith.shrui", key, w.constant(step * _DIGIT, key.element))
        digit = w.binary("arith.andi", shifted, w.constant(_BUCKETS - 1, key.element))
        return w.convert("arith.index_castui", digit, "index")

    def count(self, step: int, digit: Value, by: Value) -> Value:
        """Add to the count of a digit; return the old count."""
        w = self.emitter.w
        old = _load(self.emitter, self.counts, step, digit)
        _store(self.emitter, self.counts, w.binary("arith.addi", old, by), step, digit)
        return old


def _load(emitter: Emitter, buffer: ScratchBuffer, *at: Index, lanes: int = 0) -> Value:
    """Load an element of a scratch buffer, or a vector of them."""
    return emitter.tile_in(buffer, (0,) * len(at)).compute(_coords(at, lanes))


def _store(
    emitter: Emitter, buffer: ScratchBuffer, value: Value, *at: Index, lanes: int = 0
) -> None:
    """Store an element to a scratch buffer, or a vector of them."""
    emitter.put(buffer, _coords(at, lanes), value)


def _coords(at: Sequence[Index], lanes: int) -> Coords:
    return (*map(Coord, at[:-1]), Coord(at[-1], lanes))


@dataclass(frozen=True)
class Row:
    """The lanes to be sorted: a tile along an axis, for lanes of its other axes."""

    emitter: Emitter
    tile: TileValue
    masks: list[TileValue]
    extent: Extent
    axis: int
    others: Coords
    descending: bool

    def coords(self, place: Index, lanes: int = 0) -> Coords:
        """The coordinates of a lane of the row, or of a vector of lanes."""
        return (*self.others[: self.axis], Coord(place, lanes), *self.others[self.axis :])

    def at(self, place: Index, lanes: int = 0) -> Value:
        """The value of a lane."""
        coords = self.coords(place, lanes)
        return self.emitter.spread(self.emitter.at(self.tile, coords), coords)

    def mask(self, place: Index) -> Value | None:
        """Whether a lane is valid; None if all are."""
        return mask_at(self.emitter, self.masks, self.coords(place))

    def key(self, value: Value) -> Value:
        """An unsigned integer in the order of the sort."""
        return _key(self.emitter.w, self.tile.dtype, value, self.descending)


def _sort(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    operand, axis, descending, count = arguments(node)
    assert isinstance(axis, int)
    assert isinstance(count, Expr)
    tile, shape = emitter.tile(operand), operand.meta["type"].shape
    bounds = list(dict.fromkeys((*operand.meta["valid"].bounds, *options(node)["bounds"])))
    extents = emitter.extents(shape, bounds)
    masks = [emitter.tile(mask) for mask in options(node)["masks"]]
    limit = emitter.index(count)
    types = node.meta["types"]
    buffers = [emitter.allocate(one.shape, one.dtype) for one in types]
    if isinstance(limit, int) and 0 < limit <= _LARGEST_INSERTED:
        write = _writer_of_first(emitter, tile.dtype, limit)
    else:
        write = _writer_of_sorted(emitter, tile.dtype, shape[axis], limit)
    others = [extent for place, extent in enumerate(extents) if place != axis]

    def body(coords: Coords) -> None:
        row = Row(emitter, tile, masks, extents[axis], axis, coords, bool(descending))
        write(row, buffers)

    emitter.sweep(others, 0, body)
    return [emitter.tile_in(r, emitter.sizes(t.shape)) for r, t in zip(buffers, types, strict=True)]


# Writes the first values of a row and their places to buffers.
Write = Callable[[Row, list[ScratchBuffer]], None]


def _writer_of_sorted(emitter: Emitter, dtype: Dtype, size: Expr, limit: Index) -> Write:
    """The code that sorts a row by the digits of keys."""
    w = emitter.w
    passes = -(-_key_bits(dtype) // _DIGIT)
    both = (as_expr(2), size)
    keys = Keys(
        emitter,
        keys=emitter.allocate(both, _key_dtype(dtype)),
        places=emitter.allocate(both, I64),
        values=emitter.allocate((size,), dtype),
        counts=emitter.allocate((as_expr(passes), as_expr(_BUCKETS)), I64),
        passes=passes,
    )

    def write(row: Row, buffers: list[ScratchBuffer]) -> None:
        length = _gather(keys, row)
        side = _sort_by_digits(keys, length)
        with w.loop(0, w.min(length, limit)) as loop, emitter.scope():
            origin = _load(emitter, keys.places, side, loop.counter)
            value = _load(emitter, keys.values, w.convert("arith.index_cast", origin, "index"))
            _put_result(row, buffers, loop.counter, value, origin)

    return write


def _put_result(
    row: Row, buffers: list[ScratchBuffer], place: Index, value: Value, origin: Value
) -> None:
    for buffer, result in zip(buffers, (value, origin), strict=True):
        row.emitter.put(buffer, row.coords(place), result)


def _gather(keys: Keys, row: Row) -> Value:
    """Make the keys of valid lanes and count their digits; return the number of lanes."""
    emitter, w = keys.emitter, keys.emitter.w
    for step in range(keys.passes):
        with w.loop(0, _BUCKETS) as loop, emitter.scope():
            _store(emitter, keys.counts, w.constant(0, "i64"), step, loop.counter)
    first, end = row.extent
    with w.loop(first, end, 1, [w.index(0)]) as loop, emitter.scope():
        (length,) = loop.carried
        origin = w.convert("arith.index_cast", loop.counter, "i64")
        value = row.at(loop.counter)
        key = row.key(value)
        _store(emitter, keys.values, value, loop.counter)
        _store(emitter, keys.keys, key, 0, length)
        _store(emitter, keys.places, origin, 0, length)
        mask = row.mask(loop.counter)
        is_valid = w.constant(True, "i1") if mask is None else mask
        by = w.convert("arith.extui", is_valid, "i64")
        for step in range(keys.passes):
            keys.count(step, keys.digit(key, step), by)
        loop.yielded = [w.select(is_valid, w.index(w.add(length, 1)), length)]
    return loop.results[0]


def _sort_by_digits(keys: Keys, length: Value) -> Value:
    """Sort by each digit, the lowest first; return the copy that is sorted."""
    side = keys.emitter.w.index(0)
    for step in range(keys.passes):
        side = _sort_by_digit(keys, step, side, length)
    return side


def _sort_by_digit(keys: Keys, step: int, side: Value, length: Value) -> Value:
    """Move keys to the other copy, unless all have the same digit; return the copy they are in."""
    emitter, w = keys.emitter, keys.emitter.w
    all_of_one = _start_buckets(keys, step, length)
    to = w.index(w.sub(1, side))
    with w.loop(0, w.select(all_of_one, w.index(0), length)) as loop, emitter.scope():
        key = _load(emitter, keys.keys, side, loop.counter)
        place = keys.count(step, keys.digit(key, step), w.constant(1, "i64"))
        at = w.convert("arith.index_cast", place, "index")
        _store(emitter, keys.keys, key, to, at)
        _store(emitter, keys.places, _load(emitter, keys.places, side, loop.counter), to, at)
    return w.select(all_of_one, side, to)


def _start_buckets(keys: Keys, step: int, length: Value) -> Value:
    """Replace the counts of a digit by where its keys start; return whether one has all keys."""
    emitter, w = keys.emitter, keys.emitter.w
    total = w.convert("arith.index_cast", length, "i64")
    with (
        w.loop(0, _BUCKETS, 1, [w.constant(0, "i64"), w.constant(False, "i1")]) as loop,
        emitter.scope(),
    ):
        start, found = loop.carried
        count = _load(emitter, keys.counts, step, loop.counter)
        _store(emitter, keys.counts, start, step, loop.counter)
        has_all = w.compare("arith.cmpi", "eq", count, total)
        loop.yielded = [
            w.binary("arith.addi", start, count),
            w.binary("arith.ori", found, has_all),
        ]
    return loop.results[1]


@dataclass(frozen=True)
class First:
    """The first keys so far in sort order, and their places in the row.

    The list begins at the second vector of the buffers: an insertion also reads before it.
    """

    emitter: Emitter
    keys: ScratchBuffer
    places: ScratchBuffer
    limit: int
    lanes: int

    def load_place(self, at: Value) -> Value:
        """The place in the row of a key of the list."""
        return _load(self.emitter, self.places, self.emitter.w.add(at, self.lanes))

    def admits(self, key: Value, length: Value) -> Value:
        """Whether keys come before the last one, or there is room."""
        w = self.emitter.w
        last = _load(self.emitter, self.keys, w.add(w.max(w.sub(length, 1), 0), self.lanes))
        has_room = w.compare("arith.cmpi", "slt", length, w.index(self.limit))
        if key.lanes:
            last, has_room = w.splat(last, key.lanes), w.splat(has_room, key.lanes)
        return w.binary("arith.ori", has_room, w.compare("arith.cmpi", "ult", key, last))

    def insert(self, key: Value, place: Value, length: Value) -> None:
        """Insert a key behind equal ones; later ones move by one, and the last may drop out."""
        emitter, w, lanes = self.emitter, self.emitter.w, self.lanes
        new, new_place = w.splat(key, lanes), w.splat(place, lanes)
        count = w.splat(w.convert("arith.index_cast", length, "i64"), lanes)
        for start in reversed(range(0, self.limit, lanes)):
            # What moves is read before it is overwritten.
            old, before = (
                [_load(emitter, b, at, lanes=lanes) for b in (self.keys, self.places)]
                for at in (lanes + start, lanes + start - 1)
            )
            at = w.binary("arith.addi", w.steps("i64", lanes), w.constant(start, "i64", lanes))
            is_end = w.compare("arith.cmpi", "sge", at, count)
            is_behind = w.compare("arith.cmpi", "sgt", at, count)
            enters = w.binary("arith.ori", is_end, w.compare("arith.cmpi", "ult", new, old[0]))
            moves = w.binary("arith.ori", is_behind, w.compare("arith.cmpi", "ult", new, before[0]))
            if start == 0:  # nothing moves to the front
                first = w.compare(
                    "arith.cmpi", "eq", w.steps("i64", lanes), w.constant(0, "i64", lanes)
                )
                moves = w.select(first, w.constant(False, "i1", lanes), moves)
            for buffer, one, kept, moved in zip(
                (self.keys, self.places), (new, new_place), old, before, strict=True
            ):
                value = w.select(moves, moved, w.select(enters, one, kept))
                _store(emitter, buffer, value, lanes + start, lanes=lanes)


def _writer_of_first(emitter: Emitter, dtype: Dtype, limit: int) -> Write:
    """The code that keeps a sorted list of the first lanes."""
    w, key_dtype = emitter.w, _key_dtype(dtype)
    lanes = min(lanes_for(key_dtype, [(0, _LARGEST_INSERTED)]), 1 << (limit - 1).bit_length())
    size = (as_expr(lanes * (1 - -limit // lanes)),)
    keys, places = emitter.allocate(size, key_dtype), emitter.allocate(size, I64)
    found = First(emitter, keys, places, limit, lanes)

    def write(row: Row, buffers: list[ScratchBuffer]) -> None:
        length = _select_first(found, row)
        with w.loop(0, length) as loop, emitter.scope():
            origin = found.load_place(loop.counter)
            value = row.at(w.convert("arith.index_cast", origin, "index"))
            _put_result(row, buffers, loop.counter, value, origin)

    return write


def _select_first(found: First, row: Row) -> Value:
    """Find the first valid lanes in sort order; return their number."""
    emitter, w = found.emitter, found.emitter.w
    first, end = row.extent

    def select_from(place: Value, length: Value) -> Value:
        key = row.key(row.at(place))
        enters = found.admits(key, length)
        mask = row.mask(place)
        if mask is not None:
            enters = w.binary("arith.andi", enters, mask)
        longer = w.index(w.min(w.add(length, 1), found.limit))
        with w.branch(enters), emitter.scope():
            origin = w.convert("arith.index_cast", place, "i64")
            found.insert(key, origin, length)
        return longer if mask is None else w.select(mask, longer, length)

    def select_some(start: Index, chosen: Value, length: Value) -> Value:
        """Select from the lanes of a vector that are chosen."""
        bits = _bits(w, chosen)
        count = w.convert("arith.index_cast", w.unary("math.ctpop", bits), "index")
        with w.loop(0, count, 1, [bits, length]) as loop, emitter.scope():
            rest, length = loop.carried
            lane = w.convert("arith.index_cast", w.unary("math.cttz", rest), "index")
            less = w.binary("arith.subi", rest, w.constant(1, "i64"))
            longer = select_from(w.index(w.add(start, lane)), length)
            loop.yielded = [w.binary("arith.andi", rest, less), longer]
        return loop.results[1]

    def select_all(start: Index, stop: Index, length: Value) -> Value:
        with w.loop(start, stop, 1, [length]) as loop, emitter.scope():
            loop.yielded = [select_from(loop.counter, loop.carried[0])]
        return loop.results[0]

    length, middle, lanes = w.index(0), first, lanes_for(row.tile.dtype, [row.extent])
    if lanes:
        middle = emitter.middle(first, end, lanes)
        with w.loop(first, middle, lanes, [length]) as loop, emitter.scope():
            start, (length,) = loop.counter, loop.carried
            enters = found.admits(row.key(row.at(start, lanes)), length)
            loop.yielded = [select_some(start, enters, length)]
        (length,) = loop.results
    return select_all(middle, end, length)


def _bits(w: Writer, flags: Value) -> Value:
    """Flags as the low bits of a number."""
    of = f"vector<1xi{flags.lanes}>"
    packed = w.emit(f"vector.bitcast {flags} : {flags.type} to {of}", f"i{flags.lanes}", 1)
    text = f"vector.extract {packed}[0] : {packed.element} from {of}"
    return w.convert("arith.extui", w.emit(text, packed.element), "i64")


def _key_bits(dtype: Dtype) -> int:
    """The number of bits in which keys differ."""
    if dtype.kind == "float" and dtype.bits < 32:
        return 32 - _ZERO_BITS.get(dtype, 0)
    return 8 * dtype.itemsize


# Low bits that are zero when a float is widened to f32.
_ZERO_BITS = {elements.BF16: 16, elements.F16: 13}


def _key_dtype(dtype: Dtype) -> Dtype:
    return next(DTYPES[f"i{n}"] for n in (8, 16, 32, 64) if n >= _key_bits(dtype))


def _key(w: Writer, dtype: Dtype, x: Value, descending: bool) -> Value:
    """An unsigned integer in the order of the sort; nan is the largest."""
    if dtype.kind == "bool":
        x = w.convert("arith.extui", x, "i8")
    key = _float_key(w, x) if dtype.kind == "float" else x
    of, width, lanes = key.element, int(key.element.removeprefix("i")), key.lanes
    if dtype.kind in ("float", "int"):
        key = w.binary("arith.xori", key, w.constant(-(2 ** (width - 1)), of, lanes))
    if descending:
        key = w.binary("arith.xori", key, w.constant(-1, of, lanes))
    zeros = width - _key_bits(dtype)
    if zeros:
        key = w.binary("arith.shrui", key, w.constant(zeros, of, lanes))
    narrow = _key_dtype(dtype).mlir
    return key if narrow == of else w.convert("arith.trunci", key, narrow)


def _float_key(w: Writer, x: Value) -> Value:
    """A signed integer in the order of floats: comparing floats takes subnormals for zeros."""
    width, lanes = int(x.element.removeprefix("f")), x.lanes
    of = f"i{width}"
    bits = w.convert("arith.bitcast", x, of)
    largest = w.constant(2 ** (width - 1) - 1, of, lanes)
    sign = w.binary("arith.shrsi", bits, w.constant(width - 1, of, lanes))
    key = w.binary("arith.xori", bits, w.binary("arith.andi", sign, largest))
    # The key of -0.0, which equals 0.0, is -1.
    is_zero = w.compare("arith.cmpi", "eq", key, w.constant(-1, of, lanes))
    is_nan = w.compare("arith.cmpf", "uno", x, x)
    return w.select(is_nan, largest, w.select(is_zero, w.constant(0, of, lanes), key))


RULES[ordering.sort_op] = _sort
