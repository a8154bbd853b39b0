"""Rules of loads and stores."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from turbine.algebra import ZERO, Expr
from turbine.kernel.backends.triton import elements
from turbine.kernel.backends.triton.emitter import (
    Condition,
    Emitter,
    Source,
    Value,
    rule,
    tight,
)
from turbine.kernel.lang import memory
from turbine.kernel.trace.op import arguments, options


@rule(memory.load)
def _load(emitter: Emitter, node: fx.Node) -> Value:
    buffer, index, shape = arguments(node)
    source, given = emitter.sources[buffer], options(node)
    conditions = emitter.conditions(shape, given["bounds"], given.get("masks", ()))
    pointer = block_pointer(emitter, source, index, shape)
    return load(emitter, source, pointer, emitter.axes_of(shape), conditions)


@rule(memory.gather)
def _gather(emitter: Emitter, node: fx.Node) -> Value:
    buffer, index = arguments(node)
    source, given, shape = emitter.sources[buffer], options(node), node.meta["type"].shape
    conditions = emitter.conditions(shape, given["bounds"], given["masks"])
    return load(emitter, source, *element_pointers(emitter, source, index, shape), conditions)


def load(
    emitter: Emitter,
    source: Source,
    pointer: str,
    axes: tuple[int, ...],
    conditions: Sequence[Condition],
) -> Value:
    """Read elements; those that are masked off are 0."""
    _wait(emitter, source)
    if not conditions:
        return emitter.assign(source.name, Value(f"tl.load({pointer})", axes, source.dtype))
    mask = emitter.all_of(conditions, axes).text
    text = f"tl.load({pointer}, mask={mask}, other={elements.element(0, source.dtype)})"
    zero = frozenset(conditions)
    return emitter.assign(source.name, Value(text, axes, source.dtype, zero_unless=zero))


def block_pointer(
    emitter: Emitter, source: Source, index: Sequence[Expr], shape: Sequence[Expr]
) -> str:
    """Pointers to the elements of a block: where it starts, and the lanes."""
    axes = emitter.axes_of(shape)
    start, lanes = ZERO, []
    for axis, (offset, stride) in enumerate(zip(index, source.strides, strict=True)):
        start = start + offset * stride
        if axis in axes:
            lane = emitter.placed(emitter.lane(shape[axis]), [axis], axes)
            by = emitter.factor(stride)
            lanes.append(lane if by == "1" else f"{lane} * {by}")
    text = emitter.expr(start)
    first = source.name if text == "0" else f"{source.name} + {tight(text)}"
    return " + ".join([first, *([tight(" + ".join(lanes))] if lanes else [])])


def element_pointers(
    emitter: Emitter, source: Source, index: Sequence[fx.Node], shape: Sequence[Expr]
) -> tuple[str, tuple[int, ...]]:
    """Pointers to the elements that index tiles name, and their axes."""
    values, axes = [emitter.value(one) for one in index], emitter.axes_of(shape)
    parts = [source.name]
    for value, stride in zip(values, source.strides, strict=True):
        by, place = emitter.factor(stride), emitter.operand(value, axes)
        parts.append(tight(place) if by == "1" else f"{tight(place)} * {by}")
    missing = [axis for axis in axes if not any(axis in value.axes for value in values)]
    if missing:
        lanes = [emitter.placed(emitter.lane(shape[axis]), [axis], axes) for axis in missing]
        parts += [f"{tight(lane)} * 0" for lane in lanes]
    return " + ".join(parts), axes


def _wait(emitter: Emitter, source: Source) -> None:
    """Let the threads of a program see what others of them have written."""
    if source.needs_barrier:
        emitter.emit("tl.debug_barrier()")


@rule(memory.in_bounds)
def _in_bounds(emitter: Emitter, node: fx.Node) -> Value:
    buffer, index = arguments(node)
    source = emitter.sources[buffer]
    rows = [(emitter.value(one), size) for one, size in zip(index, source.shape, strict=True)]
    conditions = [
        Condition(value.axes, f"{tight(place)} {test}")
        for value, size in rows
        for place in [emitter.operand(value, value.axes)]
        for test in (">= 0", f"< {emitter.expr(size)}")
    ]
    return emitter.assign("inside", emitter.all_of(conditions))


@rule(memory.store)
def _store(emitter: Emitter, node: fx.Node) -> None:
    buffer, index, operand = arguments(node)
    source, shape = emitter.sources[buffer], operand.meta["type"].shape
    _write(emitter, node, block_pointer(emitter, source, index, shape), emitter.axes_of(shape))


@rule(memory.scatter)
def _scatter(emitter: Emitter, node: fx.Node) -> None:
    buffer, index, operand = arguments(node)
    source, shape = emitter.sources[buffer], operand.meta["type"].shape
    _write(emitter, node, *element_pointers(emitter, source, index, shape))


def _write(emitter: Emitter, node: fx.Node, pointer: str, axes: tuple[int, ...]) -> None:
    """Write the lanes of a tile that are not masked off."""
    _wait(emitter, emitter.sources[arguments(node)[0]])
    emitter.emit(f"tl.store({pointer}, {to_write(emitter, node, axes)})")


def to_write(emitter: Emitter, node: fx.Node, axes: tuple[int, ...]) -> str:
    """The tile that a node writes, and the mask of its lanes if they need one."""
    operand, given = arguments(node)[2], options(node)
    value, type = emitter.value(operand), operand.meta["type"]
    text = emitter.dense(value, type).text if value.axes != axes else emitter.operand(value, axes)
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"])
    return f"{text}, mask={emitter.all_of(conditions, axes).text}" if conditions else text
