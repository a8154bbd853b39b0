"""Pass tensors in memory order, and permute them inside the graph.

A channels-last image or a transposed weight then needs no copy, and results have the strides of
eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import fx

from turbine.capture.sizes import hint

aten = torch.ops.aten
# The axes of a tensor in memory, slowest first; None if they are in order.
Order = tuple[int, ...] | None


def permute_to_memory_order(
    graph: fx.Graph, weights: AbstractSet[str] = frozenset()
) -> tuple[list[Order], list[Order]]:
    """Rewrite placeholders and results; returns the memory order of each.

    Weights, which are not passed, stay in the order of their axes.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    input_orders = [
        None if node.name in weights else _permute_input(graph, node) for node in placeholders
    ]
    result_orders = [memory_order(node.meta["val"]) for node in output.args[0]]
    with graph.inserting_before(output):
        results = zip(output.args[0], result_orders, strict=True)
        output.args = (tuple(_permute(graph, node, order) for node, order in results),)
    return input_orders, result_orders


def memory_order(value: object) -> Order:
    """The order of axes in which a tensor is dense, at the example's sizes."""
    if not isinstance(value, torch.Tensor):
        return None
    sizes = [hint(size) for size in value.shape]
    strides = [hint(stride) for stride in value.stride()]
    own = tuple(range(len(sizes)))
    order = tuple(sorted(own, key=lambda axis: (-strides[axis], -sizes[axis])))
    # An axis of size 1 may be anywhere in the order, but users can see its stride.
    for exactly in (True, False):
        for one in (own, order):
            if _is_dense(sizes, strides, one, exactly):
                return None if one == own else one
    return None


def inverse(order: Order) -> Order:
    """The inverse permutation."""
    return None if order is None else tuple(sorted(range(len(order)), key=order.__getitem__))


def _is_dense(sizes: list[int], strides: list[int], order: Sequence[int], exactly: bool) -> bool:
    """Whether a tensor is dense with its axes in this order, slowest first."""
    expected = 1
    for axis in reversed(order):
        if (exactly or sizes[axis] != 1) and strides[axis] != expected:
            return False
        expected *= max(sizes[axis], 1)
    return True


def _permute_input(graph: fx.Graph, node: fx.Node) -> Order:
    order = memory_order(node.meta["val"])
    if order is None:
        return None
    users = list(node.users)
    # Other metadata of the placeholder describes the old order.
    node.meta = {"val": node.meta["val"].permute(order)}
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first):
        inside = _permute(graph, node, inverse(order))
    for user in users:
        user.replace_input_with(node, inside)
    return order


def _permute(graph: fx.Graph, node: fx.Node, order: Order) -> fx.Node:
    if order is None:
        return node
    permuted = graph.call_function(aten.permute.default, (node, list(order)))
    permuted.meta["val"] = node.meta["val"].permute(order)
    return permuted
