"""Prepare a graph of flat inputs and results for compilation: a graph in, a copy and slots out."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch
from torch import fx

from turbine import dtypes
from turbine.capture import passes
from turbine.capture.layout import Order, inverse, permute_to_memory_order
from turbine.capture.nodes import copy_graph
from turbine.capture.sizes import is_static
from turbine.signature import Slot


def flatten(
    eager: fx.GraphModule,
    fixed: AbstractSet[str] = frozenset(),
    weights: AbstractSet[str] = frozenset(),
) -> tuple[fx.GraphModule, list[Slot], list[Slot]]:
    """A copy of the graph to compile, and slots for its inputs and results.

    The memory of `fixed` inputs stays in place between calls; `weights` are not passed.
    """
    module, _ = copy_graph(eager)
    graph = module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    names = [node.name for node in placeholders]
    passes.prepare(module, names)
    input_orders, result_orders = permute_to_memory_order(graph, weights)
    inputs = [
        _slot(node, order, node.name in fixed)
        for node, order in zip(placeholders, input_orders, strict=True)
    ]
    results = [
        _slot(node, inverse(order))
        for node, order in zip(output.args[0], result_orders, strict=True)
    ]
    assert names == [node.name for node in graph.nodes if node.op == "placeholder"]
    return module, inputs, results


def _slot(node: fx.Node, order: Order, fixed: bool = False) -> Slot:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return Slot(None)
    # A cached view is looked up by address, and a weight of another size could have the same one.
    return Slot(dtypes.of_torch(value.dtype), order, fixed and is_static(value))
