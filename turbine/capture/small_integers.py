"""Compute 8-bit integers in wider, signed types.

The compiler takes unsigned integers for signed ones, and crashes on ops of 8-bit tensors and Python
numbers. Other unsigned types cannot be converted: ops that go wrong with them run in PyTorch, see
`support`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.declared_ops import EMITTED
from turbine.capture.effects import FILLS

aten = torch.ops.aten

WIDER = {torch.int8: torch.int32, torch.uint8: torch.int32}

# Ops that move elements without arithmetic, as views do.
_MOVES = {
    aten._to_copy.default,
    aten.cat.default,
    aten.clone.default,
    aten.constant_pad_nd.default,
    aten.embedding.default,
    aten.gather.default,
    aten.index.Tensor,
    aten.index_select.default,
}


def widen_small_integers(graph: fx.Graph) -> None:
    """Widen the operands of arithmetic ops, and narrow their results, in place."""
    for node in list(graph.nodes):
        if _narrows_float(node):
            # The compiler drops a clamp before the conversion: 300.0 becomes 44 for 255.
            with graph.inserting_before(node):
                (operand,) = node.all_input_nodes
                node.replace_input_with(operand, _convert(graph, operand, torch.int32))
        if _computes(node) and any(_dtype(n) in WIDER for n in (node, *node.all_input_nodes)):
            with graph.inserting_before(node):
                _widen(graph, node)


def _narrows_float(node: fx.Node) -> bool:
    """Whether a node converts floats to uint8."""
    if node.target is not aten._to_copy.default or _dtype(node) != torch.uint8:
        return False
    return bool(_dtype(node.all_input_nodes[0]).is_floating_point)


def _computes(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.is_view or target in _MOVES:
        return False
    if target.name() in EMITTED:
        return False
    return isinstance(node.meta.get("val"), torch.Tensor)


def _widen(graph: fx.Graph, node: fx.Node) -> None:
    target: Any = node.target
    for argument in node.all_input_nodes:
        if _dtype(argument) in WIDER:
            wide = _convert(graph, argument, WIDER[_dtype(argument)])
            node.replace_input_with(argument, wide)
    narrow = _dtype(node)
    if narrow not in WIDER:
        return
    # The node itself becomes the conversion back, since a signature may name it.
    kwargs = {k: WIDER[narrow] if v == narrow else v for k, v in node.kwargs.items()}
    wide = graph.call_function(target, node.args, kwargs)
    wide.meta = {**node.meta, "val": node.meta["val"].to(WIDER[narrow])}
    wide.meta.pop("tensor_meta", None)
    if target in FILLS and narrow == torch.uint8:
        # abs() keeps the compiler from folding the conversion to unsigned, which fails.
        wide.args = tuple(int(a) % 256 if isinstance(a, (int, float)) else a for a in wide.args)
        constant, wide = wide, graph.call_function(aten.abs.default, (wide,))
        wide.meta = constant.meta
    node.target, node.args, node.kwargs = aten._to_copy.default, (wide,), {"dtype": narrow}


def _convert(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    converted = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    converted.meta["val"] = node.meta["val"].to(dtype)
    return converted


def _dtype(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
