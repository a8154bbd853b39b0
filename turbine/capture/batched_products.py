"""Make products of a batch and one matrix products of two matrices, in place.

PyTorch expands the weight of a linear layer whose input is not contiguous. As a matrix the weight
is packed once, and may be quantized.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.nodes import emit, value_of
from turbine.capture.sizes import expression, sizes_of

aten = torch.ops.aten


def join_batches(graph: fx.Graph) -> None:
    """Rewrite `bmm` of a batch of one, or of an expanded matrix on the right, as `mm`."""
    for node in list(graph.find_nodes(op="call_function", target=aten.bmm.default)):
        x, y = node.args
        is_single = value_of(node).shape[0] == 1
        with graph.inserting_before(node):
            matrix = _drop_batch(y, node) if is_single else _expanded_matrix(y)
            if matrix is None:
                continue
            rows = _drop_batch(x, node) if is_single else _join(x, node)
            product = emit(graph, aten.mm.default, rows, matrix, beside=node)
            if is_single:
                result = emit(graph, aten.unsqueeze.default, product, 0, beside=node)
            else:
                sizes = [*sizes_of(graph, x, [0, 1]), *sizes_of(graph, matrix, [1])]
                result = emit(graph, aten.view.default, product, sizes, beside=node)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _drop_batch(node: fx.Node, beside: fx.Node) -> fx.Node:
    """The matrix of a batch of one."""
    matrix = _expanded_matrix(node)
    return matrix or emit(node.graph, aten.squeeze.dim, node, 0, beside=beside)


def _expanded_matrix(node: fx.Node) -> fx.Node | None:
    """The matrix that a batch repeats: what `torch.matmul` expands, and views as it is."""
    source: Any = node.args[0] if node.args else None
    if node.target is aten.view.default and _have_equal_shapes(node, source):
        node, source = source, source.args[0]
    is_matrix = node.target is aten.expand.default and value_of(source).dim() == 2
    return source if is_matrix else None


def _have_equal_shapes(one: fx.Node, other: fx.Node) -> bool:
    return [*map(expression, value_of(one).shape)] == [*map(expression, value_of(other).shape)]


def _join(x: fx.Node, beside: fx.Node) -> fx.Node:
    """All rows of a batch, as one matrix."""
    form = torch.contiguous_format
    packed = emit(x.graph, aten.clone.default, x, memory_format=form, beside=beside)
    return emit(x.graph, aten.view.default, packed, [-1, value_of(x).shape[2]], beside=beside)
