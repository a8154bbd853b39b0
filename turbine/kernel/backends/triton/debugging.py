"""Rules of prints and assertions: they write words that the caller reads after the launch.

Note [Alarms of a GPU]
The first words have the largest `ALARM - program` for each assertion. After `MOST_ALARMS` words,
each program has two: one more than the number of its assertion that failed, and the bad index.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from turbine.algebra import Expr
from turbine.kernel.backends.triton.casting import convert
from turbine.kernel.backends.triton.emitter import Condition, Emitter, Value, rule, tight
from turbine.kernel.lang import debugging, index_checks
from turbine.kernel.program.messages import (
    ALARM,
    LOG_WORDS,
    MOST_ALARMS,
    Alarm,
    Indexed,
    Site,
)
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import BOOL, DTYPES, I64

F64 = DTYPES["f64"]


@rule(debugging.assert_op)
def _assert(emitter: Emitter, node: fx.Node) -> None:
    condition, message = arguments(node)
    assert isinstance(message, str)
    value, type, given = emitter.value(condition), condition.meta["type"], options(node)
    place = _alarm(emitter, Alarm(node.meta.get("line"), message))
    text = emitter.scalar(value) if value.number is not None else value.text
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"])
    fails = emitter.all_of([Condition(value.axes, f"{tight(text)} == 0"), *conditions])
    _raise_if(emitter, place, fails, None)


@rule(index_checks.check_index)
def _check_index(emitter: Emitter, node: fx.Node) -> None:
    index, buffer, axis, shape, _ = arguments(node)
    value, given = emitter.value(index), options(node)
    source = emitter.sources[buffer]
    name, size = buffer.meta["buffer"], buffer.meta["type"].shape[axis]
    message = f"an index is out of range for axis {axis} of {name}, which has size {size}"
    place = _alarm(emitter, Alarm(node.meta.get("line"), message, Indexed(name, axis, size)))
    text = emitter.scalar(value) if value.number is not None else emitter.operand(value, value.axes)
    limit = emitter.expr(source.shape[axis])
    bad = Condition(value.axes, f"({tight(text)} < 0) | ({tight(text)} >= {limit})")
    conditions = emitter.conditions(shape, given["bounds"], given["masks"])
    named = Value(text, value.axes, I64)
    _raise_if(emitter, place, emitter.all_of([bad, *conditions]), named)


def _alarm(emitter: Emitter, alarm: Alarm) -> int:
    """The index of an alarm in the kernel's table; equal alarms share an entry."""
    if alarm in emitter.alarms:
        return emitter.alarms.index(alarm)
    if len(emitter.alarms) == MOST_ALARMS:
        raise emitter.error(
            f"there are more than {MOST_ALARMS} assertions and index checks",
            "remove checks with check=False, or use a tkl.for_loop",
        )
    emitter.alarms.append(alarm)
    return len(emitter.alarms) - 1


def _raise_if(emitter: Emitter, place: int, fails: Value, index: Value | None) -> None:
    """Record the number of the program if an element fails, and the first of the bad indices."""
    fails = emitter.assign("fails", Value(f"({fails.text}).to(tl.int32)", fails.axes, BOOL))
    with emitter.indented(f"if {_over_all('max', fails)} != 0:"):
        number = f"{tight(emitter.number)}.to(tl.int64)"
        emitter.emit(f"tl.atomic_max(alarms + {place}, {ALARM} - {number})")
        if index is None:
            return
        record = emitter.name("record")
        emitter.emit(f"{record} = alarms + {MOST_ALARMS} + 2 * {number}")
        emitter.emit(f"tl.store({record}, {place + 1})")
        emitter.emit(f"tl.store({record} + 1, {_first_bad(emitter, fails, index)})")


def _over_all(name: str, value: Value) -> str:
    """A reduction over all axes."""
    text = value.text
    for place in reversed(range(len(value.axes))):
        text = f"tl.{name}({text}, {place})"
    return text


def _first_bad(emitter: Emitter, fails: Value, index: Value) -> str:
    """The index in the first lane that fails; axis by axis, the first."""
    text, flags = emitter.operand(index, fails.axes), fails.text
    if not fails.axes:
        return text
    function = emitter.call("first_of", _FIRST_OF)
    spread = f"({flags} * 0 + {text}).to(tl.int64)"
    for place in reversed(range(len(fails.axes))):
        name, found = emitter.name("fails"), emitter.name("bad")
        emitter.emit(f"{name}, {found} = tl.reduce(({flags}, {spread}), {place}, {function})")
        flags, spread = name, found
    return spread


_FIRST_OF = """\
def first_of(left, x, right, y):
    return left | right, tl.where(left != 0, x, y)
"""


@rule(debugging.print_op)
def _print(emitter: Emitter, node: fx.Node) -> None:
    values, label = arguments(node)
    parts = tuple(v if isinstance(v, str) else v.meta["type"] for v in values)
    emitter.sites.append(Site(node.meta.get("line"), label, parts))
    rows = zip(values, options(node)["bounds"], options(node)["masks"], strict=True)
    tiles = [(value, bounds, masks) for value, bounds, masks in rows if not isinstance(value, str)]
    starts, words = [], "2"
    for value, _, _ in tiles:
        starts.append(words)
        words = f"{words} + 2 * {_count(emitter, value.meta['type'].shape)}"
    used, first = emitter.name("used"), emitter.name("first")
    emitter.emit(f"{used} = tl.atomic_add(log, ({words}) + tl.full([], 0, tl.int64))")
    with emitter.indented(f"if {used} + 1 + {words} <= {LOG_WORDS}:"):
        emitter.emit(f"{first} = log + {used} + 1")
        emitter.emit(f"tl.store({first}, {len(emitter.sites)})")
        emitter.emit(f"tl.store({first} + 1, {emitter.number})")
        for (value, bounds, masks), start in zip(tiles, starts, strict=True):
            _write_tile(emitter, value, bounds, masks, f"{first} + {start}")


def _count(emitter: Emitter, shape: tuple[Expr, ...]) -> str:
    return " * ".join(["1", *(emitter.factor(size) for size in shape)])


def _write_tile(emitter: Emitter, operand: fx.Node, bounds: Any, masks: Any, start: str) -> None:
    """Write two words for each lane: whether it is valid, and its value."""
    type = operand.meta["type"]
    axes, value = emitter.axes_of(type.shape), emitter.value(operand)
    text = emitter.dense(value, type).text
    if type.dtype.kind == "float":
        wide = convert(emitter, text, type.dtype, F64)
        text = f"{tight(wide)}.to(tl.int64, bitcast=True)"
    else:
        text = f"{tight(text)}.to(tl.int64)"
    pointer, step = start, "2"
    for axis in reversed(axes):
        lane = emitter.placed(emitter.lane(type.shape[axis]), [axis], axes)
        pointer = f"{pointer} + {lane} * {step}"
        step = f"{step} * {emitter.factor(type.shape[axis])}"
    conditions = emitter.conditions(type.shape, bounds, masks)
    mask = f", mask={emitter.all_of(conditions, axes).text}" if conditions else ""
    one = f"tl.full({emitter.counts(type.shape, axes)}, 1, tl.int64)"
    emitter.emit(f"tl.store({pointer}, {one}{mask})")
    emitter.emit(f"tl.store({pointer} + 1, {text}{mask})")


@rule(debugging.breakpoint_op)
def _breakpoint(emitter: Emitter, node: fx.Node) -> None:
    """Breakpoints are ignored in compiled code."""
