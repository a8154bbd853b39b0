"""Products of one row or column that was copied from elements that lie apart.

Data tiling of IREE 3.13 folds the copy and reads neighbours instead, as in `x[:, 0].clone() @ y`.
Without a copy, capture/rules/products.py sees it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.crossed_reads import VIEWS
from turbine.capture.nodes import emit

aten = torch.ops.aten

_FOLDED = {*VIEWS, aten.clone.default, torch.ops.prims.squeeze.default}
_HALVES = (torch.float16, torch.bfloat16)


def add_up_copied_columns(graph: fx.Graph) -> None:
    """Write these products as sums, in place."""
    for node in list(graph.nodes):
        if node.target is aten.mm.default or node.target is aten.addmm.default:
            *_, a, b = node.args
            axis = 0 if _is_copied(a, 0) else 1 if _is_copied(b, 1) else None
            if axis is not None:
                with graph.inserting_before(node):
                    _rewrite(graph, node, axis)


def _rewrite(graph: fx.Graph, node: fx.Node, axis: int) -> None:
    """Results are known by their nodes, so the node stays: it becomes the last step."""
    *added, a, b = node.args
    dtype, beta = node.meta["val"].dtype, node.kwargs.get("beta", 1)
    product = _add_product(graph, *((a, b) if axis == 0 else (b, a)), axis)
    product = emit(graph, aten.mul.Scalar, product, node.kwargs.get("alpha", 1))
    node.target, node.args, node.kwargs = aten._to_copy.default, (product,), {"dtype": dtype}
    if added and beta:
        narrow = emit(graph, aten._to_copy.default, product, dtype=dtype)
        term = emit(graph, aten.mul.Scalar, added[0], beta)
        node.target, node.args, node.kwargs = aten.add.Tensor, (narrow, term), {}


def _add_product(graph: fx.Graph, row: Any, matrix: Any, axis: int) -> fx.Node:
    dtype = row.meta["val"].dtype
    if dtype in _HALVES:
        row, matrix = (
            emit(graph, aten._to_copy.default, side, dtype=torch.float32) for side in (row, matrix)
        )
    scaled = emit(graph, aten.mul.Tensor, matrix, emit(graph, aten.t.default, row))
    return emit(graph, aten.sum.dim_IntList, scaled, [axis], True)


def _is_copied(node: Any, axis: int) -> bool:
    """Whether a matrix that has one element along an axis comes from elements that lie apart."""
    if node.meta["val"].shape[axis] != 1:
        return False
    while node.op == "call_function" and node.target in _FOLDED:
        node = node.args[0]
        if not node.meta["val"].is_contiguous():
            return True
    return False
