"""Make a graph of flat inputs and results safe to compile: a graph in, a copy and slots out."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch
from torch import fx

from turbine import dtypes
from turbine.capture import passes
from turbine.capture.layout import Order, hand_over_in_memory_order, inverse
from turbine.capture.sizes import is_static
from turbine.signature import Slot


def flatten(
    eager: fx.GraphModule, fixed: AbstractSet[str] = frozenset()
) -> tuple[fx.GraphModule, list[Slot], list[Slot]]:
    """A copy of the graph to compile, and how to call it; inputs that are `fixed` stay in place."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(eager.graph, {}))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    names = [node.name for node in placeholders]
    passes.prepare(graph, names)
    taken, given = hand_over_in_memory_order(graph)
    inputs = [
        _slot(node, order, node.name in fixed)
        for node, order in zip(placeholders, taken, strict=True)
    ]
    results = [
        _slot(node, inverse(order)) for node, order in zip(output.args[0], given, strict=True)
    ]
    assert names == [node.name for node in graph.nodes if node.op == "placeholder"]
    return fx.GraphModule(torch.nn.Module(), graph), inputs, results


def _slot(node: fx.Node, order: Order, fixed: bool = False) -> Slot:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return Slot(None)
    # A weight of another size could begin at the same address.
    return Slot(dtypes.of_torch(value.dtype), order, fixed and is_static(value))
