"""The rule of dots."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.triton.casting import convert, converted
from turbine.kernel.backends.triton.emitter import Emitter, Value, rule
from turbine.kernel.backends.triton.reductions import fill
from turbine.kernel.lang import products
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import DTYPES, F32, TileType

# Products in memory at once, where there is no instruction for a dot.
_MOST_PRODUCTS = 1 << 20


@rule(products.dot)
def _dot(emitter: Emitter, node: fx.Node) -> Value:
    left, right, start = arguments(node)
    type, given = node.meta["type"], options(node)
    sides = zip((left, right), given["bounds"], given["masks"], (-1, -2), strict=True)
    a, b = (_without_masked(emitter, *side) for side in sides)
    acc, axes = emitter.value(start), emitter.axes_of(type.shape)
    wide = acc.dtype if acc.dtype.bits == 64 else products.accumulator_dtype(a.dtype)
    batch = [axis for axis in axes if axis < type.rank - 2]
    is_matrix = all(len(one.axes) == len(batch) + 2 for one in (a, b))
    write = _sum_of_products
    if is_matrix and len(batch) <= 1 and (wide.kind == "float" or a.dtype.name == "int8"):
        write = _instruction
    text = write(emitter, node, a, b, acc, wide)
    return emitter.assign("dot", Value(convert(emitter, text, wide, acc.dtype), axes, acc.dtype))


def _without_masked(
    emitter: Emitter, operand: fx.Node, bounds: Any, masks: Any, axis: int
) -> Value:
    """An operand with zeros for masked-off lanes along the contraction."""
    type = operand.meta["type"]
    conditions = emitter.conditions(type.shape, bounds, masks, [type.rank + axis])
    return fill(emitter, emitter.value(operand), type, conditions, 0, emitter.axes_of(type.shape))


def _instruction(
    emitter: Emitter, node: fx.Node, a: Value, b: Value, acc: Value, wide: Dtype
) -> str:
    """A dot that the GPU has an instruction for, or that Triton makes of multiply-adds."""
    type: TileType = node.meta["type"]
    dtype = wide if wide.bits == 64 else _COMPUTED_IN.get(a.dtype.name, a.dtype)
    parts = [_assign_operand(emitter, converted(emitter, one, dtype)).text for one in (a, b)]
    is_added = acc.number != 0 and acc.dtype == wide
    if is_added:
        parts.append(emitter.dense(acc, type).text)
    if dtype == F32:
        parts.append('input_precision="ieee"')
    if wide != F32:
        parts.append(f"out_dtype={emitter.type(wide)}")
    text = f"tl.dot({', '.join(parts)})"
    if acc.number == 0 or is_added:
        return text
    return f"{text} + {_in(emitter, acc, wide, emitter.axes_of(type.shape))}"


# Floats that no instruction multiplies, and others that have all their numbers.
_COMPUTED_IN = dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), DTYPES["f16"])


def _in(emitter: Emitter, value: Value, dtype: Dtype, axes: Sequence[int]) -> str:
    """A tile in a dtype, with some axes."""
    return emitter.operand(converted(emitter, value, dtype), axes)


def _sum_of_products(
    emitter: Emitter, node: fx.Node, a: Value, b: Value, acc: Value, wide: Dtype
) -> str:
    """A dot for which there is no instruction: all products at once, and their sums."""
    left, right, _ = arguments(node)
    rank, axes = node.meta["type"].rank, emitter.axes_of(node.meta["type"].shape)
    # Axes: batch axes, rows, contraction, columns.
    b_axes = tuple(axis if axis < rank - 2 else axis + 1 for axis in b.axes)
    among = tuple(sorted({*a.axes, *b_axes}))
    sizes = dict(zip(a.axes, _sizes(emitter, left, a), strict=True))
    sizes |= dict(zip(b_axes, _sizes(emitter, right, b), strict=True))
    if prod(sizes.values()) > _MOST_PRODUCTS:
        raise emitter.error(
            f"a dot of {left.meta['type']} and {right.meta['type']} has no instruction and is too "
            "large for one of products",
            "use smaller blocks",
        )
    factors = [_assign_operand(emitter, converted(emitter, one, wide)).text for one in (a, b)]
    pairs = zip(factors, (a.axes, b_axes), strict=True)
    text = " * ".join(emitter.placed(factor, own, among) for factor, own in pairs)
    if rank - 1 in among:
        text = f"tl.sum({text}, {among.index(rank - 1)})"
    return text if acc.number == 0 else f"{text} + {_in(emitter, acc, wide, axes)}"


def _assign_operand(emitter: Emitter, value: Value) -> Value:
    """An operand as a variable."""
    return value if value.text.isidentifier() else emitter.assign("operand", value)


def _sizes(emitter: Emitter, operand: fx.Node, value: Value) -> list[int]:
    return [emitter.lane_count(operand.meta["type"].shape[axis]) for axis in value.axes]
