"""Hand tensors over in the order their elements lie in memory, and permute them inside the graph.

A channels-last image or a transposed weight then passes without a copy, and results get the
strides eager PyTorch gives them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from turbine.capture.sizes import hint

aten = torch.ops.aten
# The axes of a tensor in memory, slowest first; None where that is their own order.
Order = tuple[int, ...] | None


def hand_over_in_memory_order(graph: fx.Graph) -> tuple[list[Order], list[Order]]:
    """Rewrite placeholders and results; gives the order each is handed over in."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    taken = [_take(graph, node) for node in placeholders]
    given = [memory_order(node.meta["val"]) for node in output.args[0]]
    with graph.inserting_before(output):
        results = zip(output.args[0], given, strict=True)
        output.args = (tuple(_permute(graph, node, order) for node, order in results),)
    return taken, given


def memory_order(value: object) -> Order:
    """The order in which a tensor has no gaps, at the example's sizes."""
    if not isinstance(value, torch.Tensor):
        return None
    sizes = [hint(size) for size in value.shape]
    strides = [hint(stride) for stride in value.stride()]
    own = tuple(range(len(sizes)))
    order = tuple(sorted(own, key=lambda axis: (-strides[axis], -sizes[axis])))
    # An axis of size one lies anywhere, yet its stride is seen too.
    for exactly in (True, False):
        for one in (own, order):
            if _is_dense(sizes, strides, one, exactly):
                return None if one == own else one
    return None


def inverse(order: Order) -> Order:
    """The permutation that leads back."""
    return None if order is None else tuple(sorted(range(len(order)), key=order.__getitem__))


def _is_dense(sizes: list[int], strides: list[int], order: Sequence[int], exactly: bool) -> bool:
    """Whether the axes in this order, slowest first, leave no gaps."""
    expected = 1
    for axis in reversed(order):
        if (exactly or sizes[axis] != 1) and strides[axis] != expected:
            return False
        expected *= max(sizes[axis], 1)
    return True


def _take(graph: fx.Graph, node: fx.Node) -> Order:
    order = memory_order(node.meta["val"])
    if order is None:
        return None
    users = list(node.users)
    # The only facts about a placeholder; others it may have are of the old order.
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
