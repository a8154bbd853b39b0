"""Keep rounding to bfloat16: IREE drops it where a loop narrows and widens a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from turbine.capture.effects import is_pointwise
from turbine.capture.nodes import emit

aten = torch.ops.aten

_WIDE = {torch.float32, torch.float64}


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


def _dtype(node: fx.Node) -> torch.dtype | None:
    value: Any = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
