"""Recurrent layers of Dynamo's graphs, which kernels compute."""

from __future__ import annotations

from torch import fx

from turbine.capture.nodes import copy_graph
from turbine.capture.recurrence import BY_KERNELS


def is_layer(node: fx.Node) -> bool:
    """Whether a node is a recurrent layer."""
    return node.target in BY_KERNELS


def use_kernels(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, or a copy whose recurrent layers are calls of kernels."""
    if not any(map(is_layer, graph.graph.nodes)):
        return graph
    copied, _ = copy_graph(graph)
    for node in filter(is_layer, copied.graph.nodes):
        node.target = BY_KERNELS[node.target]
    copied.recompile()
    return copied
