"""Rules of prints and assertions: they write words that the caller reads after the launch."""

from __future__ import annotations

from typing import Any

from torch import fx

from turbine import errors
from turbine.kernel.backends.iree.casting import emit_cast
from turbine.kernel.backends.iree.emitter import RULES, WORKGROUPS, Emitter
from turbine.kernel.backends.iree.memory import mask_at, over_lanes, source
from turbine.kernel.backends.iree.pointwise import broadcast_coords
from turbine.kernel.backends.iree.reductions import join_bits
from turbine.kernel.backends.iree.tiles import Coords, TileValue
from turbine.kernel.lang import debugging, index_checks
from turbine.kernel.program.messages import (
    ALARM,
    LOG_WORDS,
    MOST_ALARMS,
    RECORD_WORDS,
    Alarm,
    Indexed,
    Site,
)
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import DTYPES, I64
from turbine.mlir.writer import Index, Value, Writer

ALARMS = f"memref<{MOST_ALARMS + WORKGROUPS * RECORD_WORDS}xi64>"
LOG = f"memref<{LOG_WORDS}xi64>"


def _assert(emitter: Emitter, node: fx.Node) -> None:
    condition, message = arguments(node)
    assert isinstance(message, str)
    w = emitter.w
    place = _alarm(emitter, Alarm(node.meta.get("line"), message))
    tile = emitter.tile(condition)

    def body(coords: Coords) -> None:
        holds = emitter.at(tile, coords)
        fails = w.binary("arith.xori", holds, w.constant(True, "i1"))
        with w.branch(fails):
            _raise_alarm(emitter, place)

    over_lanes(emitter, condition, options(node)["bounds"], options(node)["masks"], body)


def _alarm(emitter: Emitter, alarm: Alarm) -> int:
    """The index of an alarm in the kernel's table; equal alarms share an entry."""
    if alarm in emitter.alarms:
        return emitter.alarms.index(alarm)
    if len(emitter.alarms) == MOST_ALARMS:
        raise errors.KernelError(
            f"kernel {emitter.kernel} has more than {MOST_ALARMS} assertions and index checks",
            where=alarm.line,
            hint="remove checks with check=False, or use a tkl.for_loop",
        )
    emitter.alarms.append(alarm)
    return len(emitter.alarms) - 1


def _raise_alarm(emitter: Emitter, place: int) -> None:
    """Record the number of the program, unless an earlier program is recorded."""
    w = emitter.w
    word = w.binary("arith.subi", w.constant(ALARM, "i64"), _program_number(emitter))
    at = w.index(place)
    w.emit(f"memref.atomic_rmw maxs {word}, %alarms[{at}] : (i64, {ALARMS}) -> i64", "i64")


def _program_number(emitter: Emitter) -> Value:
    return emitter.w.convert("arith.index_cast", emitter.number, "i64")


def _check_index(emitter: Emitter, node: fx.Node) -> None:
    """Check all indices at once; if one is out of range, search for the first."""
    index, buffer, axis, shape, _ = arguments(node)
    assert isinstance(axis, int)
    w, tile = emitter.w, emitter.tile(index)
    place = _alarm(emitter, _bad_index(node))
    end = w.index(w.sub(source(emitter, buffer).shape[axis], 1))
    last = w.convert("arith.index_cast", end, "i64")

    def compute(coords: Coords) -> Value:
        """A number that is negative if the index is out of range."""
        value = emitter.spread(emitter.at(tile, broadcast_coords(tile, coords)), coords)
        left = w.binary("arith.subi", emitter.spread(last, coords), value)
        return w.binary("arith.ori", value, left)

    signs = TileValue(emitter.sizes(shape), I64, compute, tile.weight + 2, tile.reads)
    bounds: Any = options(node)["bounds"]
    masks = [emitter.tile(mask) for mask in options(node)["masks"]]

    def check(coords: Coords) -> None:
        fails, mask = _is_negative(w, emitter.at(signs, coords)), mask_at(emitter, masks, coords)
        with w.branch(fails if mask is None else w.binary("arith.andi", fails, mask)):
            _raise_alarm(emitter, place)
            _record(emitter, place, emitter.at(tile, broadcast_coords(tile, coords)))

    if not shape:
        emitter.sweep_inside(shape, bounds, check, None)
        return
    found = join_bits(emitter, signs, shape, bounds, masks)
    with w.branch(_is_negative(w, found)), emitter.scope():
        emitter.sweep_inside(shape, bounds, check, None)


def _is_negative(w: Writer, value: Value) -> Value:
    return w.compare("arith.cmpi", "slt", value, w.constant(0, "i64"))


def _bad_index(node: fx.Node) -> Alarm:
    _, buffer, axis, *_ = arguments(node)
    name, size = buffer.meta["buffer"], buffer.meta["type"].shape[axis]
    message = f"an index is out of range for axis {axis} of {name}, which has size {size}"
    return Alarm(node.meta.get("line"), message, Indexed(name, axis, size))


def _record(emitter: Emitter, place: int, index: Value) -> None:
    """Record the first bad index of the workgroup, which runs its programs in order."""
    w = emitter.w
    start = w.add(MOST_ALARMS, w.mul(Value("%workgroup", "index"), RECORD_WORDS))
    first = w.load("%alarms", ALARMS, [start], "i64", 0)
    with w.branch(w.compare("arith.cmpi", "eq", first, w.constant(0, "i64"))):
        words = (w.constant(place + 1, "i64"), _program_number(emitter), index)
        for step, word in enumerate(words):
            w.store(word, "%alarms", ALARMS, [w.add(start, step)])


def _print(emitter: Emitter, node: fx.Node) -> None:
    values, label = arguments(node)
    w = emitter.w
    parts = tuple(v if isinstance(v, str) else v.meta["type"] for v in values)
    emitter.sites.append(Site(node.meta.get("line"), label, parts))
    rows = zip(values, options(node)["bounds"], options(node)["masks"], strict=True)
    tiles = [(value, bounds, masks) for value, bounds, masks in rows if not isinstance(value, str)]
    words: Index = 2
    starts: list[Index] = []
    for value, _, _ in tiles:
        starts.append(words)
        words = w.add(words, w.mul(2, _count(emitter, emitter.tile(value))))
    taken = w.convert("arith.index_cast", w.index(words), "i64")
    zero = w.index(0)
    used = w.emit(f"memref.atomic_rmw addi {taken}, %log[{zero}] : (i64, {LOG}) -> i64", "i64")
    first = w.index(w.add(w.convert("arith.index_cast", used, "index"), 1))
    fits = w.compare("arith.cmpi", "sle", w.index(w.add(first, words)), w.index(LOG_WORDS))
    with w.branch(fits), emitter.scope():
        _store_word(emitter, first, w.constant(len(emitter.sites), "i64"))
        number = w.convert("arith.index_cast", emitter.number, "i64")
        _store_word(emitter, w.index(w.add(first, 1)), number)
        for (value, bounds, masks), start in zip(tiles, starts, strict=True):
            _write_tile(emitter, value, bounds, masks, w.index(w.add(first, start)))


def _count(emitter: Emitter, tile: TileValue) -> Index:
    count: Index = 1
    for size in tile.shape:
        count = emitter.w.mul(count, size)
    return count


def _store_word(emitter: Emitter, place: Value, word: Value) -> None:
    emitter.w.store(word, "%log", LOG, [place])


def _write_tile(emitter: Emitter, operand: Any, bounds: Any, masks: Any, start: Value) -> None:
    """Write two words for each lane: whether it is valid, and its value."""
    tile, w = emitter.tile(operand), emitter.w

    def body(coords: Coords) -> None:
        lane: Index = 0
        for coord, size in zip(coords, tile.shape, strict=True):
            lane = w.add(w.mul(lane, size), coord.base)
        place = w.add(start, w.mul(lane, 2))
        _store_word(emitter, w.index(place), w.constant(1, "i64"))
        _store_word(
            emitter, w.index(w.add(place, 1)), _as_word(emitter, emitter.at(tile, coords), tile)
        )

    over_lanes(emitter, operand, bounds, masks, body)


def _as_word(emitter: Emitter, value: Value, tile: TileValue) -> Value:
    if tile.dtype.kind != "float":
        return emit_cast(emitter.w, value, tile.dtype, I64)
    wide = emit_cast(emitter.w, value, tile.dtype, DTYPES["f64"])
    return emitter.w.convert("arith.bitcast", wide, "i64")


def _breakpoint(emitter: Emitter, node: fx.Node) -> None:
    """Breakpoints are ignored in compiled code."""


RULES[debugging.assert_op] = _assert
RULES[index_checks.check_index] = _check_index
RULES[debugging.print_op] = _print
RULES[debugging.breakpoint_op] = _breakpoint
