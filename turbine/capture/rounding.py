"""Round to bfloat16 as PyTorch does.

IREE drops rounding where a loop narrows and widens a number. PyTorch converts integers by float32;
IREE makes one conversion of the two, and has no code for it on CPUs without bfloat16 instructions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from turbine.capture.effects import is_pointwise
from turbine.capture.nodes import emit

aten = torch.ops.aten

_WIDE = {torch.float32, torch.float64}


def round_integers(graph: fx.Graph) -> None:
    """Convert integers and bools to bfloat16 by the bits of float32, rounded to nearest even."""
    for node in graph.find_nodes(op="call_function", target=aten._to_copy.default):
        (operand,) = node.all_input_nodes
        if _dtype(node) == torch.bfloat16 and _dtype(operand) in _INTEGERS:
            with graph.inserting_before(node):
                rounded = _round(graph, operand, beside=node)
            # The node itself becomes the last step, since a signature may name it.
            node.target, node.args, node.kwargs = rounded.target, rounded.args, {}
            graph.erase_node(rounded)


_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def _round(graph: fx.Graph, operand: fx.Node, beside: fx.Node) -> fx.Node:
    """A number as bfloat16: the upper half of a float32, rounded."""

    def add(op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return emit(graph, op, *args, beside=beside, **kwargs)

    wide = add(aten._to_copy.default, operand, dtype=torch.float32)
    shape = operand.meta["val"].shape
    # The compiler has no bitcast of tensors of rank 0.
    row = wide if shape else add(aten.view.default, wide, [1])
    bits = add(aten.view.dtype, row, torch.int32)
    upper = add(aten.__rshift__.Scalar, bits, 16)
    is_odd = add(aten.bitwise_and.Scalar, upper, 1)
    rounded = add(aten.add.Tensor, add(aten.add.Tensor, bits, is_odd), 0x7FFF)
    half = add(aten.__rshift__.Scalar, rounded, 16)
    short = add(aten._to_copy.default, half, dtype=torch.int16)
    result = add(aten.view.dtype, short, torch.bfloat16)
    return result if shape else add(aten.view.default, result, [])


def keep_rounding(graph: fx.Graph) -> None:
    """Widen computed bfloat16 values by their bits, which IREE does not fold."""
    widened: dict[fx.Node, fx.Node] = {}
    for node in [node for node in graph.nodes if _widens(node)]:
        for operand in filter(_is_rounded, node.all_input_nodes):
            if operand not in widened:
                with graph.inserting_before(node):
                    widened[operand] = _widen(graph, operand)
        node.args = map_arg(node.args, lambda operand: widened.get(operand, operand))


def _widens(node: fx.Node) -> bool:
    """Whether an op converts its operands to a wider type."""
    if not is_pointwise(node.target):
        return False
    floats = [
        dtype
        for operand in (node, *node.all_input_nodes)
        if (dtype := _dtype(operand)) is not None and dtype.is_floating_point
    ]
    return torch.bfloat16 in floats and not _WIDE.isdisjoint(floats)


def _is_rounded(node: fx.Node) -> bool:
    return node.op == "call_function" and _dtype(node) == torch.bfloat16


def _widen(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A float32 with the bits of the bfloat16 as its upper half."""
    shape = node.meta["val"].shape
    # The compiler has no bitcast of tensors of rank 0.
    row = node if shape else emit(graph, aten.view.default, node, [1], beside=node)
    bits = emit(graph, aten.view.dtype, row, torch.int16, beside=node)
    wide = emit(graph, aten._to_copy.default, bits, dtype=torch.int32, beside=node)
    moved = emit(graph, aten.mul.Scalar, wide, 1 << 16, beside=node)
    widened = emit(graph, aten.view.dtype, moved, torch.float32, beside=node)
    return widened if shape else emit(graph, aten.view.default, widened, [], beside=node)


def widened_from(node: fx.Node) -> fx.Node | None:
    """The float of 16 bits that a node is in float32, by a conversion or as `_widen` writes it."""
    if _dtype(node) != torch.float32:
        return None
    if node.target is aten._to_copy.default:
        (source,) = node.all_input_nodes
        return source if _dtype(source) in _NARROW else widened_from(source)
    for target in _WIDENING:
        if node.target is not target:
            return None
        (node,) = node.all_input_nodes
    return node if _dtype(node) == torch.bfloat16 else None


_NARROW = {torch.float16, torch.bfloat16}
_WIDENING = (
    aten.view.dtype,
    aten.mul.Scalar,
    aten._to_copy.default,
    aten.view.dtype,
)  # from the last op to the first


def _dtype(node: fx.Node) -> torch.dtype | None:
    value: Any = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
