"""Make products of batches of one products of two matrices, in place.

PyTorch expands the weight of a linear layer whose input is not contiguous, to a batch of as many as
there are examples. As a matrix the weight is packed once, and may be quantized.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.nodes import emit, value_of
from turbine.capture.sizes import expression

aten = torch.ops.aten


def drop_single_batches(graph: fx.Graph) -> None:
    """Rewrite `bmm` of batches of one as `mm`."""
    for node in list(graph.find_nodes(op="call_function", target=aten.bmm.default)):
        if expression(value_of(node).shape[0]) != 1:
            continue
        with graph.inserting_before(node):
            matrices = [_drop_batch(operand, node) for operand in node.args]
            product = emit(graph, aten.mm.default, *matrices, beside=node)
        # The node stays: results of the program go by its name.
        node.target, node.args = aten.unsqueeze.default, (product, 0)


def _drop_batch(node: Any, beside: fx.Node) -> fx.Node:
    """The matrix of a batch of one."""
    matrix = _expanded_matrix(node)
    return matrix or emit(node.graph, aten.squeeze.dim, node, 0, beside=beside)


def _expanded_matrix(node: fx.Node) -> fx.Node | None:
    """The matrix that a batch repeats: what `torch.matmul` expands, and views as it is."""
    source: Any = node.args[0] if node.args else None
    if node.target is aten.view.default and _have_equal_shapes(node, source):
        node, source = source, source.args[0] if source.args else None
    is_matrix = node.target is aten.expand.default and value_of(source).dim() == 2
    return source if is_matrix else None


def _have_equal_shapes(one: fx.Node, other: fx.Node) -> bool:
    return [*map(expression, value_of(one).shape)] == [*map(expression, value_of(other).shape)]
