"""Rules of loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from turbine.kernel.backends.triton.emitter import Condition, Emitter, Value, rule
from turbine.kernel.backends.triton.loop_masks import hoisted_bounds
from turbine.kernel.lang import control_flow
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.trace.op import arguments
from turbine.kernel.trace.types import TileType
from turbine.kernel.trace.validity import Bound, Valid


@rule(control_flow.for_op)
def _for(emitter: Emitter, node: fx.Node) -> list[Value]:
    start, stop, step, init, body, captured = arguments(node)
    carried, hoisted = _start(emitter, init), hoisted_bounds(body)
    assert body.counter is not None
    counter = emitter.symbols[body.counter] = emitter.name(body.counter.name)
    limits = [emitter.expr(start), emitter.expr(stop)] + [str(step)] * (step != 1)
    with emitter.indented(f"for {counter} in range({', '.join(limits)}):"):
        _iterate(emitter, body, carried, captured, hoisted)
    for value, first, bounds in zip(carried, init, hoisted, strict=True):
        _restore(emitter, value, first, bounds)
    return carried


def _restore(emitter: Emitter, carried: Value, first: fx.Node, bounds: Sequence[Bound]) -> None:
    """Give the lanes outside of bounds the values from before the loop."""
    type = first.meta["type"]
    conditions = _apart_from_padding(emitter, type, bounds, ())
    if conditions:
        whole = emitter.dense(emitter.value(first), type)
        mask = emitter.all_of(conditions, whole.axes).text
        emitter.emit(f"{carried.text} = tl.where({mask}, {carried.text}, {whole.text})")


def _apart_from_padding(
    emitter: Emitter, type: TileType, bounds: Sequence[Bound], masks: Sequence[fx.Node]
) -> list[Condition]:
    """The conditions for valid lanes; lanes of padding may hold anything."""
    padding = emitter.conditions(type.shape, (), ())
    found = emitter.conditions(type.shape, bounds, masks)
    return [one for one in found if one not in padding]


@rule(control_flow.while_op)
def _while(emitter: Emitter, node: fx.Node) -> list[Value]:
    test, of_test, init, body, captured = arguments(node)
    carried = _start(emitter, init)
    goes_on = emitter.name("goes_on")
    _assign_test(emitter, goes_on, test, carried, of_test)
    with emitter.indented(f"while {goes_on}:"):
        _iterate(emitter, body, carried, captured, [()] * len(carried))
        _assign_test(emitter, goes_on, test, carried, of_test)
    return carried


def _assign_test(
    emitter: Emitter, name: str, test: Body, carried: Sequence[Value], captured: Sequence[fx.Node]
) -> None:
    (value,) = emitter.enter(test, carried, captured)
    text = emitter.scalar(value) if value.number is not None else value.text
    emitter.emit(f"{name} = {text}")


def _start(emitter: Emitter, init: Sequence[fx.Node]) -> list[Value]:
    """Variables for carried tiles, with their first values."""
    return [
        emitter.assign("carried", emitter.dense(emitter.value(one), one.meta["type"]))
        for one in init
    ]


def _iterate(
    emitter: Emitter,
    body: Body,
    carried: Sequence[Value],
    captured: Sequence[fx.Node],
    hoisted: Sequence[Sequence[Bound]],
) -> None:
    """Write the body of a loop; masked-off lanes keep what was carried, but for hoisted bounds."""
    before = len(emitter.lines)
    results = emitter.enter(body, carried, captured)
    rows = zip(carried, results, body.valid, hoisted, output_of(body.graph), strict=True)
    updates = []
    for old, new, valid, later, node in rows:
        bounds = tuple(bound for bound in valid.bounds if bound not in later)
        text = _update(emitter, old, new, replace(valid, bounds=bounds), node.meta["type"])
        if text != old.text:
            updates.append((old.text, text))
    if updates:
        names, texts = zip(*updates, strict=True)
        emitter.emit(f"{', '.join(names)} = {', '.join(texts)}")
    elif len(emitter.lines) == before:
        emitter.emit("pass")


def _update(emitter: Emitter, old: Value, new: Value, valid: Valid, type: TileType) -> str:
    conditions = _apart_from_padding(emitter, type, valid.bounds, valid.masks)
    whole = emitter.dense(new, type)
    if not conditions:
        return whole.text
    mask = emitter.all_of(conditions, whole.axes).text
    return f"tl.where({mask}, {whole.text}, {old.text})"


@rule(control_flow.cond_op)
def _cond(emitter: Emitter, node: fx.Node) -> list[Value]:
    condition, passed, one, of_one, other, of_other = arguments(node)
    chosen, given = emitter.value(condition), [emitter.values[n] for n in passed]
    types = [out.meta["type"] for out in output_of(one.graph)]
    names = [emitter.name("branch") for _ in types]
    text = emitter.scalar(chosen) if chosen.number is not None else chosen.text
    with emitter.indented(f"if {text}:"):
        _branch(emitter, names, types, one, given, of_one)
    with emitter.indented("else:"):
        _branch(emitter, names, types, other, given, of_other)
    return [
        Value(name, emitter.axes_of(type.shape), type.dtype)
        for name, type in zip(names, types, strict=True)
    ]


def _branch(
    emitter: Emitter,
    names: Sequence[str],
    types: Sequence[TileType],
    body: Body,
    passed: Sequence[Any],
    captured: Sequence[fx.Node],
) -> None:
    before = len(emitter.lines)
    results = emitter.enter(body, passed, captured)
    for name, type, value in zip(names, types, results, strict=True):
        emitter.emit(f"{name} = {emitter.dense(value, type).text}")
    if len(emitter.lines) == before:
        emitter.emit("pass")


@rule(control_flow.result)
def _result(emitter: Emitter, node: fx.Node) -> Value:
    values, place = arguments(node)
    found: Value = emitter.values[values][place]
    return found
