"""Rules of prints and assertions: words in memory that the caller reads after the launch."""

from __future__ import annotations

from typing import Any

from torch import fx

from turbine import errors
from turbine.kernel.backends.iree.casting import converted
from turbine.kernel.backends.iree.emitter import RULES, Emitter
from turbine.kernel.backends.iree.memory import over_lanes
from turbine.kernel.backends.iree.tiles import Coords, TileValue
from turbine.kernel.backends.iree.writer import Index, Value
from turbine.kernel.lang import debugging
from turbine.kernel.op import arguments, options
from turbine.kernel.reporting import ALARM, LOG_WORDS, MOST_ALARMS, Alarm, Site
from turbine.kernel.types import DTYPES, I64

ALARMS = f"memref<{MOST_ALARMS}xi64>"
LOG = f"memref<{LOG_WORDS}xi64>"


def _assert(emitter: Emitter, node: fx.Node) -> None:
    condition, message = arguments(node)
    assert isinstance(message, str)
    w = emitter.w
    if len(emitter.alarms) == MOST_ALARMS:
        raise errors.KernelError(
            f"kernel {emitter.kernel} has more than {MOST_ALARMS} assertions",
            where=node.meta.get("line"),
        )
    emitter.alarms.append(Alarm(node.meta.get("line"), message))
    place = w.index(len(emitter.alarms) - 1)
    tile = emitter.tile(condition)
    number = w.convert("arith.index_cast", emitter.number, "i64")
    word = w.binary("arith.subi", w.constant(ALARM, "i64"), number)

    def body(coords: Coords) -> None:
        holds = emitter.at(tile, coords)
        fails = w.binary("arith.xori", holds, w.constant(True, "i1"))
        with w.branch(fails):
            w.emit(
                f"memref.atomic_rmw maxs {word}, %alarms[{place}] : (i64, {ALARMS}) -> i64", "i64"
            )

    over_lanes(emitter, condition, options(node)["bounds"], options(node)["masks"], body)


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
        _word(emitter, first, w.constant(len(emitter.sites), "i64"))
        number = w.convert("arith.index_cast", emitter.number, "i64")
        _word(emitter, w.index(w.add(first, 1)), number)
        for (value, bounds, masks), start in zip(tiles, starts, strict=True):
            _write(emitter, value, bounds, masks, w.index(w.add(first, start)))


def _count(emitter: Emitter, tile: TileValue) -> Index:
    count: Index = 1
    for size in tile.shape:
        count = emitter.w.mul(count, size)
    return count


def _word(emitter: Emitter, place: Value, word: Value) -> None:
    emitter.w.store(word, "%log", LOG, [place])


def _write(emitter: Emitter, operand: Any, bounds: Any, masks: Any, start: Value) -> None:
    """Each lane as two words: whether it holds a value, and which."""
    tile, w = emitter.tile(operand), emitter.w

    def body(coords: Coords) -> None:
        lane: Index = 0
        for coord, size in zip(coords, tile.shape, strict=True):
            lane = w.add(w.mul(lane, size), coord.base)
        place = w.add(start, w.mul(lane, 2))
        _word(emitter, w.index(place), w.constant(1, "i64"))
        _word(emitter, w.index(w.add(place, 1)), _as_word(emitter, emitter.at(tile, coords), tile))

    over_lanes(emitter, operand, bounds, masks, body)


def _as_word(emitter: Emitter, value: Value, tile: TileValue) -> Value:
    if tile.dtype.kind != "float":
        return converted(emitter.w, value, tile.dtype, I64)
    wide = converted(emitter.w, value, tile.dtype, DTYPES["f64"])
    return emitter.w.convert("arith.bitcast", wide, "i64")


def _breakpoint(emitter: Emitter, node: fx.Node) -> None:
    """Compiled code runs on."""


RULES[debugging.assert_op] = _assert
RULES[debugging.print_op] = _print
RULES[debugging.breakpoint_op] = _breakpoint
