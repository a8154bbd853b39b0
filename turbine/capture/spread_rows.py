"""Find single rows and columns of matmuls that are copied from elements which lie apart.

Data tiling of IREE 3.13 folds the copy into the packing of the row, and reads the elements next to
each other instead: `x[:, 0] @ y`, `(x[:, 0] * 1.0) @ y`, `torch.stack([x[:, 0]]) @ y`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.crossed_reads import UNFUSED
from turbine.capture.effects import is_pointwise

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
# Ops that move elements, which the compiler may turn into views: a cat of one tensor, say.
_MOVES = (
    aten.cat.default,
    aten.stack.default,
    aten.constant_pad_nd.default,
    aten.clone.default,
    aten._to_copy.default,
)


def mark_spread_rows(graph: fx.Graph) -> None:
    """Mark the operands that must not be fused with the matmul that reads them."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _PRODUCTS:
            a, b = node.args[-2:]
            for operand, axis in ((a, -2), (b, -1)):
                if _size(operand, axis) == 1 and _is_spread(operand):
                    operand.meta[UNFUSED] = True


def _size(operand: fx.Node, axis: int) -> Any:
    return operand.meta["val"].shape[axis]


def _is_spread(operand: fx.Node) -> bool:
    """Whether it may be a copy of elements that do not lie next to each other."""
    seen: set[fx.Node] = set()
    left = [operand]
    while left:
        node = left.pop()
        value = node.meta.get("val")
        if node in seen or not isinstance(value, torch.Tensor):
            continue
        seen.add(node)
        if not value.is_contiguous():
            return True
        if node.op == "call_function" and _only_moves(node.target):
            left += node.all_input_nodes
    return False


def _only_moves(target: Any) -> bool:
    is_view = isinstance(target, torch._ops.OpOverload) and target.is_view
    return is_view or target in _MOVES or is_pointwise(target)
