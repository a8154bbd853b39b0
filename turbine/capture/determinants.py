"""Fix the layout of matrices whose determinants have gradients, before a graph is traced again.

PyTorch factors the transpose of a matrix that is contiguous. The gradient relies on it, so that the
matrix must stay contiguous, or not, whatever the layout of the results of decompositions is.
"""

from __future__ import annotations

import torch
from torch import fx

from turbine.capture.nodes import emit, value_of

aten = torch.ops.aten


def fix_layouts(graph: fx.Graph) -> None:
    """Copy each matrix to the layout that it has."""
    for target in (aten._linalg_det.default, aten._linalg_slogdet.default):
        for node in graph.find_nodes(op="call_function", target=target):
            matrix = node.all_input_nodes[0]
            with graph.inserting_before(node):
                node.replace_input_with(matrix, _copy(graph, matrix, node))


def _copy(graph: fx.Graph, matrix: fx.Node, beside: fx.Node) -> fx.Node:
    if value_of(matrix).is_contiguous():
        return _copy_contiguous(graph, matrix, beside)
    turned = emit(graph, aten.transpose.int, matrix, -2, -1, beside=beside)
    copied = _copy_contiguous(graph, turned, beside)
    return emit(graph, aten.transpose.int, copied, -2, -1, beside=beside)


def _copy_contiguous(graph: fx.Graph, matrix: fx.Node, beside: fx.Node) -> fx.Node:
    layout = torch.contiguous_format
    return emit(graph, aten.clone.default, matrix, beside=beside, memory_format=layout)
