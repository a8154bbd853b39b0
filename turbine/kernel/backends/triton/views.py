"""Rules of views and of tiles of valid lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from torch import fx

from turbine.algebra import ZERO, Expr
from turbine.kernel.backends.triton.casting import convert
from turbine.kernel.backends.triton.emitter import Emitter, Value, rule, tight
from turbine.kernel.lang import memory, shapes
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import BOOL, F32


@rule(shapes.expand_dims)
def _expand_dims(emitter: Emitter, node: fx.Node) -> Value:
    operand, place = arguments(node)
    value = emitter.value(operand)
    return value.moved(value.text, lambda axis: axis + (axis >= place))


@rule(shapes.squeeze)
def _squeeze(emitter: Emitter, node: fx.Node) -> Value:
    operand, place = arguments(node)
    value = emitter.value(operand)
    return value.moved(value.text, lambda axis: axis - (axis > place))


@rule(shapes.broadcast_to)
def _broadcast_to(emitter: Emitter, node: fx.Node) -> Value:
    value: Value = emitter.value(arguments(node)[0])
    return value


@rule(shapes.transpose)
def _transpose(emitter: Emitter, node: fx.Node) -> Value:
    operand, order = arguments(node)
    value = emitter.value(operand)
    moved = [order.index(axis) for axis in value.axes]
    if moved == sorted(moved):
        return value.moved(value.text, order.index)
    places = [value.axes.index(axis) for axis in order if axis in value.axes]
    is_swap = places == [1, 0]
    text = f"tl.trans({value.text})" if is_swap else f"tl.permute({value.text}, {places})"
    zero = value.zero_unless
    if zero is not None and any(len(one.axes) > 1 for one in zero):
        zero = None
    seen = replace(value, zero_unless=zero).moved(text, order.index)
    return emitter.assign("transpose", replace(seen, axes=tuple(sorted(seen.axes))))


@rule(shapes.mask_of)
def _mask_of(emitter: Emitter, node: fx.Node) -> Value:
    (shape,) = arguments(node)
    given = options(node)
    conditions = emitter.conditions(shape, given["bounds"], given["masks"])
    if not conditions:
        return Value("True", (), BOOL, True)
    return emitter.assign("valid", emitter.all_of(conditions))


@rule(memory.fill_missing)
def _fill_missing(emitter: Emitter, node: fx.Node) -> Value:
    operand, other = arguments(node)
    value, filling = emitter.value(operand), emitter.value(other)
    shape, given = node.meta["type"].shape, options(node)
    conditions = emitter.conditions(shape, given["bounds"], given["masks"])
    if not conditions or (filling.number == 0 and value.zero_unless == frozenset(conditions)):
        return value
    valid = emitter.all_of(conditions)
    axes = tuple(sorted({*valid.axes, *value.axes, *filling.axes}))
    condition, x, y = (
        emitter.operand(one, axes) if one.number is None else emitter.scalar(one)
        for one in (valid, value, filling)
    )
    text = f"tl.where({condition}, {x}, {y})"
    return emitter.assign("filled", Value(text, axes, value.dtype))


@rule(memory.to_index)
def _to_index(emitter: Emitter, node: fx.Node) -> None:
    operand, symbol = arguments(node)
    value = emitter.value(operand)
    if value.number is not None:
        value = Value(emitter.scalar(value), (), value.dtype)
    emitter.symbols[symbol] = tight(emitter.operand(value, ()))


# Parts of tiles


@rule(shapes.slice_)
def _slice(emitter: Emitter, node: fx.Node) -> Value:
    operand, axis, first, length, step = arguments(node)
    value, type = emitter.value(operand), operand.meta["type"]
    if axis not in value.axes:
        return value
    place = value.axes.index(axis)
    lane = emitter.placed(emitter.lane(type.shape[axis]), [axis], value.axes)
    if emitter.is_unit(length):
        text = _one_lane(emitter, value, f"{lane} == {emitter.expr(first)}", place)
        return emitter.assign("slice", Value(text, _without(value.axes, axis), value.dtype))
    lanes = emitter.lane(length)
    index = f"{lanes} * {step} + {emitter.factor(first)}"
    last = emitter.lane_count(type.shape[axis]) - 1
    index = f"tl.minimum({index}, {last})"
    sizes = [length if one == axis else type.shape[one] for one in value.axes]
    text = gather(emitter, value, index, place, sizes)
    return emitter.assign("slice", Value(text, value.axes, value.dtype))


def _without(axes: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The axes of a tile of which one has become a single lane."""
    return tuple(one for one in axes if one != axis)


def _one_lane(emitter: Emitter, value: Value, is_wanted: str, place: int) -> str:
    """The elements in one lane along an axis: those of the others are 0 in a sum."""
    text = emitter.operand(value, value.axes)
    if value.dtype.kind == "bool":
        return f"tl.sum(tl.where({is_wanted}, {tight(text)}.to(tl.int32), 0), {place}) != 0"
    if value.dtype.kind == "float" and value.dtype.bits < 32:
        wide = convert(emitter, text, value.dtype, F32)
        total = f"tl.sum(tl.where({is_wanted}, {wide}, 0.0), {place})"
        return convert(emitter, total, F32, value.dtype)
    return f"tl.sum(tl.where({is_wanted}, {text}, 0), {place}).to({emitter.type(value.dtype)})"


def gather(emitter: Emitter, value: Value, index: str, place: int, sizes: Sequence[Expr]) -> str:
    """Elements along one axis of a tensor, at an index of one axis."""
    rank = len(sizes)
    shape = emitter.list_of(sizes)
    places = ", ".join(":" if n == place else "None" for n in range(rank))
    spread = f"({index})[{places}]" if rank > 1 else f"({index})"
    text = emitter.operand(value, value.axes)
    where = f"tl.broadcast_to({spread}, {shape}), {place}"
    if value.dtype.kind == "bool":
        return f"tl.gather({tight(text)}.to(tl.int8), {where}) != 0"
    return f"tl.gather({text}, {where})"


@rule(shapes.concatenate)
def _concatenate(emitter: Emitter, node: fx.Node) -> Value:
    operands, axis = arguments(node)
    type = node.meta["type"]
    axes = emitter.axes_of(type.shape)
    if axis not in axes:
        return emitter.value(operands[0])
    lane, place = emitter.lane(type.shape[axis]), axes.index(axis)
    text, start = "", ZERO
    for operand in operands:
        size = operand.meta["type"].shape[axis]
        whole = emitter.assign("part", _dense_along(emitter, operand, axes, axis))
        if emitter.is_unit(size):
            part = whole.text
        else:
            last = emitter.lane_count(size) - 1
            index = f"tl.minimum(tl.maximum({lane} - {emitter.factor(start)}, 0), {last})"
            part = gather(emitter, whole, index, place, [type.shape[one] for one in axes])
        is_before = emitter.placed(f"{lane} < {emitter.factor(start)}", [axis], axes)
        text = f"tl.where({is_before}, {text}, {part})" if text else part
        start = start + size
    return emitter.assign("concatenate", Value(text, axes, type.dtype))


def _dense_along(emitter: Emitter, operand: fx.Node, axes: tuple[int, ...], axis: int) -> Value:
    """A part of a concatenation with all axes of the result, of size 1 where its own is 1."""
    type, value = operand.meta["type"], emitter.value(operand)
    shape = emitter.counts(type.shape, axes)
    if value.number is not None:
        return replace(emitter.dense(value, type, axes), axes=axes)
    text = emitter.operand(value, axes)
    return Value(f"tl.broadcast_to({text}, {shape})", axes, value.dtype)


@rule(shapes.reshape)
def _reshape(emitter: Emitter, node: fx.Node) -> Value:
    operand, sizes = arguments(node)
    type = operand.meta["type"]
    value = emitter.value(operand)
    if not value.axes:
        return value
    before, after = emitter.axes_of(type.shape), emitter.axes_of(sizes)
    whole = emitter.dense(value, type)
    old = [type.shape[axis] for axis in before]
    new = [sizes[axis] for axis in after]
    if [emitter.size(s) for s in old] == [emitter.size(s) for s in new]:
        return emitter.assign("reshape", Value(whole.text, after, value.dtype))
    shape = emitter.counts(sizes, after)
    if all(emitter.size(size).number == emitter.lane_count(size) for size in (*old, *new)):
        text = f"tl.reshape({whole.text}, {shape})"
        return emitter.assign("reshape", Value(text, after, value.dtype))
    return emitter.assign("reshape", Value(_regather(emitter, whole, old, new), after, value.dtype))


def _regather(emitter: Emitter, whole: Value, old: Sequence[Expr], new: Sequence[Expr]) -> str:
    """A reshape across padding: flat, each element is gathered from where it was."""
    total = prod(emitter.lane_count(size) for size in new)
    source = prod(emitter.lane_count(size) for size in old)
    number, place, rest = "0", emitter.name("place"), emitter.name("rest")
    emitter.emit(f"{rest} = tl.arange(0, {total})")
    stride = "1"
    # The number of an element without padding, from its place among lanes.
    for size in reversed(new):
        lanes = emitter.lane_count(size)
        number = f"{number} + {rest} % {lanes} * {stride}"
        emitter.emit(f"{place} = {number}")
        number = place
        emitter.emit(f"{rest} = {rest} // {lanes}")
        stride = f"{stride} * {emitter.factor(size)}"
    index, step = "0", 1
    for size in reversed(old):
        by = emitter.factor(size)
        emitter.emit(f"{rest} = {index} + {place} % {by} * {step}")
        emitter.emit(f"{place} = {place} // {by}")
        index, step = rest, step * emitter.lane_count(size)
        rest = emitter.name("rest")
    flat = f"tl.reshape({whole.text}, [{source}])"
    index = f"tl.minimum({index}, {source - 1})"
    shape = emitter.list_of(new)
    if whole.dtype.kind == "bool":
        return f"tl.reshape(tl.gather({flat}.to(tl.int8), {index}, 0) != 0, {shape})"
    return f"tl.reshape(tl.gather({flat}, {index}, 0), {shape})"
