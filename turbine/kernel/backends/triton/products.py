"""The rule of dots."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.triton.emitter import Emitter, Value, rule
from turbine.kernel.backends.triton.reductions import fill
from turbine.kernel.lang import products
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import TileType

# Products in memory at once, where there is no instruction for a dot.
_MOST_PRODUCTS = 1 << 20


@rule(products.dot)
def _dot(emitter: Emitter, node: fx.Node) -> Value:
    left, right, start = arguments(node)
    type, given = node.meta["type"], options(node)
    sides = zip((left, right), given["bounds"], given["masks"], (-1, -2), strict=True)
    a, b = (_without_masked(emitter, *side) for side in sides)
    acc, axes = emitter.value(start), emitter.axes_of(type.shape)
    batch = [axis for axis in axes if axis < type.rank - 2]
    is_matrix = all(len(one.axes) == len(batch) + 2 for one in (a, b))
    if is_matrix and len(batch) <= 1 and _has_instruction(a.dtype):
        return _instruction(emitter, node, a, b, acc)
    return _sum_of_products(emitter, node, a, b, acc)


def _without_masked(
    emitter: Emitter, operand: fx.Node, bounds: Any, masks: Any, axis: int
) -> Value:
    """An operand with zeros for masked-off lanes along the contraction."""
    type = operand.meta["type"]
    conditions = emitter.conditions(type.shape, bounds, masks, [type.rank + axis])
    return fill(emitter, emitter.value(operand), type, conditions, 0, emitter.axes_of(type.shape))


def _has_instruction(dtype: Dtype) -> bool:
    return dtype.kind == "float" or dtype.name == "int8"


def _instruction(emitter: Emitter, node: fx.Node, a: Value, b: Value, acc: Value) -> Value:
    type: TileType = node.meta["type"]
    axes, texts = emitter.axes_of(type.shape), [_named(emitter, one).text for one in (a, b)]
    wide = products.accumulator_dtype(a.dtype)
    is_empty = acc.number == 0
    is_added = not is_empty and acc.dtype == wide
    parts = texts
    if is_added:
        parts = [*parts, emitter.dense(acc, type).text]
    if a.dtype.name == "float32":
        parts = [*parts, 'input_precision="ieee"']
    out = {"float64": "tl.float64", "int32": "tl.int32"}.get(wide.name)
    if out is not None:
        parts = [*parts, f"out_dtype={out}"]
    text = f"tl.dot({', '.join(parts)})"
    if not is_empty and not is_added:
        text = f"{text} + {emitter.operand(acc, axes)}.to({emitter.type(wide)})"
    if acc.dtype != wide:
        text = f"({text}).to({emitter.type(acc.dtype)})"
    return emitter.assign("dot", Value(text, axes, acc.dtype))


def _sum_of_products(emitter: Emitter, node: fx.Node, a: Value, b: Value, acc: Value) -> Value:
    """A dot for which there is no instruction: all products at once, and their sums."""
    left, right, _ = arguments(node)
    rank, axes = node.meta["type"].rank, emitter.axes_of(node.meta["type"].shape)
    # Axes: batch axes, rows, contraction, columns.
    a_axes, b_axes = a.axes, tuple(axis if axis < rank - 2 else axis + 1 for axis in b.axes)
    among = tuple(sorted({*a_axes, *b_axes}))
    sizes = {**dict(zip(a_axes, _sizes(emitter, left, a), strict=True))}
    sizes |= dict(zip(b_axes, _sizes(emitter, right, b), strict=True))
    if prod(sizes.values()) > _MOST_PRODUCTS:
        raise emitter.error(
            f"a dot of {left.meta['type']} and {right.meta['type']} has no instruction and is too "
            "large for one of products",
            "use smaller blocks",
        )
    wide = products.accumulator_dtype(left.meta["type"].dtype)
    to = emitter.type(wide)
    texts = [
        f"{emitter.placed(_named(emitter, value).text, own, among)}.to({to})"
        for value, own in ((a, a_axes), (b, b_axes))
    ]
    text = " * ".join(texts)
    if rank - 1 in among:
        text = f"tl.sum({text}, {among.index(rank - 1)})"
    if acc.number != 0:
        text = f"{text} + {emitter.operand(acc, axes)}"
    if acc.dtype != wide:
        text = f"({text}).to({emitter.type(acc.dtype)})"
    return emitter.assign("dot", Value(text, axes, acc.dtype))


def _named(emitter: Emitter, value: Value) -> Value:
    if value.number is not None:
        return Value(emitter.scalar(value), (), value.dtype)
    return value if value.text.isidentifier() else emitter.assign("operand", value)


def _sizes(emitter: Emitter, operand: fx.Node, value: Value) -> list[int]:
    return [emitter.lane_count(operand.meta["type"].shape[axis]) for axis in value.axes]
