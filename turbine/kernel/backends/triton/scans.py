"""Rules of scans, and of reductions with a user function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from turbine.kernel.backends.triton import elements
from turbine.kernel.backends.triton.casting import convert, converted
from turbine.kernel.backends.triton.emitter import Condition, Emitter, Value, rule
from turbine.kernel.backends.triton.reductions import (
    LARGER,
    PRODUCT,
    SMALLER,
    fill,
    neutral,
    without_axes,
)
from turbine.kernel.lang import scans
from turbine.kernel.lang.control_flow import Body
from turbine.kernel.trace.op import Op, arguments, options
from turbine.kernel.trace.types import DTYPES, F32, TileType

_SCANS = {
    "cumsum": ("sum", "tl.cumsum({0}, {1}, reverse={2})", None),
    "cumprod": ("prod", "tl.associative_scan({0}, {1}, product, reverse={2})", PRODUCT),
    "cummax": ("max", "tl.associative_scan({0}, {1}, larger, reverse={2})", LARGER),
    "cummin": ("min", "tl.associative_scan({0}, {1}, smaller, reverse={2})", SMALLER),
}
I32 = DTYPES["i32"]
_SCALAR = TileType((), F32)


@rule(scans.cumsum, scans.cumprod, scans.cummax, scans.cummin)
def _scan(emitter: Emitter, node: fx.Node) -> Value:
    op = node.target
    assert isinstance(op, Op)
    operand, axis, reverse = arguments(node)
    type, given = operand.meta["type"], options(node)
    value, dtype = emitter.value(operand), node.meta["type"].dtype
    if emitter.is_unit(type.shape[axis]):
        return value
    wide = I32 if dtype.kind == "bool" else F32 if elements.is_small(dtype) else dtype
    name, call, helper = _SCANS[op.name]
    if helper is not None:
        emitter.call(*helper)
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"], [axis])
    value = converted(emitter, value, wide)
    rows = fill(emitter, value, type.of(wide), conditions, neutral(name, wide), [axis])
    text = call.format(rows.text, rows.axes.index(axis), bool(reverse))
    text = convert(emitter, text, wide, dtype)
    return emitter.assign(op.name, Value(text, rows.axes, dtype))


@rule(scans.scan_op)
def _associative_scan(emitter: Emitter, node: fx.Node) -> list[Value]:
    operands, axis, reverse, body, captured = arguments(node)
    type = operands[0].meta["type"]
    if emitter.is_unit(type.shape[axis]):
        return [emitter.value(operand) for operand in operands]
    given = options(node)
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"], [axis])
    tiles = _whole_tiles(emitter, operands, conditions, axis)
    function = _combine_function(emitter, operands, body, captured, is_masked=bool(conditions))
    names = [emitter.name("scanned") for _ in tiles]
    if conditions:
        # Lanes that are masked off are passed over: each tile comes with whether it has a value.
        flags = fill(
            emitter,
            Value("tl.full([], 1, tl.int32)", (), I32),
            type.of(I32),
            conditions,
            0,
            tiles[0].axes,
        )
        tiles = [*tiles, flags]
        names = [*names, emitter.name("has_value")]
    place = tiles[0].axes.index(axis)
    listed = ", ".join(tile.text for tile in tiles)
    given_tiles = f"({listed})" if len(tiles) > 1 else listed
    call = f"tl.associative_scan({given_tiles}, {place}, {function}, reverse={bool(reverse)})"
    emitter.emit(f"{', '.join(names)} = {call}")
    return [
        Value(name, tiles[0].axes, operand.meta["type"].dtype)
        for name, operand in zip(names, operands, strict=False)
    ]


def _whole_tiles(
    emitter: Emitter, operands: Sequence[fx.Node], conditions: Sequence[Condition], axis: int
) -> list[Value]:
    """The tiles with the same axes."""
    axes = {axis, *(a for one in conditions for a in one.axes)}
    axes |= {a for operand in operands for a in emitter.value(operand).axes}
    wanted = tuple(sorted(axes))
    return [
        emitter.dense(emitter.value(operand), operand.meta["type"], wanted) for operand in operands
    ]


@rule(scans.reduce_op)
def _reduce(emitter: Emitter, node: fx.Node) -> list[Value]:
    operands, axis, starts, body, captured = arguments(node)
    type, given = operands[0].meta["type"], options(node)
    conditions = emitter.conditions(type.shape, given["bounds"], given["masks"], [axis])
    tiles = _whole_tiles(emitter, operands, conditions, axis)
    if conditions:
        mask = emitter.all_of(conditions, tiles[0].axes).text
        first = [
            converted(emitter, emitter.value(start), start.meta["type"].dtype) for start in starts
        ]
        tiles = [
            replace(tile, text=f"tl.where({mask}, {tile.text}, {start.text})")
            for tile, start in zip(tiles, first, strict=True)
        ]
    if emitter.is_unit(type.shape[axis]):
        return [Value(tile.text, without_axes(tile.axes, [axis]), tile.dtype) for tile in tiles]
    function = _combine_function(emitter, operands, body, captured, is_masked=False)
    names = [emitter.name("reduced") for _ in tiles]
    listed = ", ".join(tile.text for tile in tiles)
    given_tiles = f"({listed})" if len(tiles) > 1 else listed
    place = tiles[0].axes.index(axis)
    emitter.emit(f"{', '.join(names)} = tl.reduce({given_tiles}, {place}, {function})")
    axes = without_axes(tiles[0].axes, [axis])
    return [Value(name, axes, tile.dtype) for name, tile in zip(names, tiles, strict=True)]


def _combine_function(
    emitter: Emitter,
    operands: Sequence[fx.Node],
    body: Body,
    captured: Sequence[fx.Node],
    *,
    is_masked: bool,
) -> str:
    """Write a user function of two values as a function of Triton's."""
    name, count = emitter.name("combine"), len(operands)
    left, right = ([f"{side}_{n}" for n in range(count)] for side in ("left", "right"))
    inner = Emitter(emitter.kernel, emitter.facts, emitter.padded, emitter.is_wide)
    inner.line, inner.names = emitter.line, emitter.names | {*left, *right, "has_left", "has_right"}
    passed = [
        Value(text, (), operand.meta["type"].dtype)
        for text, operand in zip([*left, *right], [*operands, *operands], strict=True)
    ]
    for node in captured:
        value = emitter.values.get(node)
        if not isinstance(value, Value) or value.number is None:
            raise emitter.error(
                "the combine function uses a computed value from outside of it",
                "pass the value as one more tile of the tuple",
            )
    inner.values.update({node: emitter.values[node] for node in captured})
    results = [inner.dense(value, _SCALAR).text for value in inner.enter(body, passed, captured)]
    if inner.sizes or inner.lanes:
        raise emitter.error(
            "the combine function uses a size", "pass the size as one more tile of the tuple"
        )
    emitter.functions.update(inner.functions)
    lines, takes = list(inner.lines), [*left, *right]
    if is_masked:
        takes = [*left, "has_left", *right, "has_right"]
        results = [
            f"tl.where(has_left == 0, {after}, tl.where(has_right == 0, {before}, {both}))"
            for before, after, both in zip(left, right, results, strict=True)
        ]
        results.append("has_left | has_right")
    head = f"def {name}({', '.join(takes)}):"
    emitter.functions[name] = "\n".join([head, *lines, f"    return {', '.join(results)}", ""])
    return name
