"""Find the users of nodes, and give operands and results of kernels the axes they need."""

from __future__ import annotations

import math

import torch
from torch import fx

from turbine.capture.nodes import emit

aten = torch.ops.aten


def only_user(node: fx.Node) -> fx.Node | None:
    """The user of a node, if it is the only one."""
    users = [*node.users]
    return users[0] if len(users) == 1 else None


def to_rank(node: fx.Node, rank: int, beside: fx.Node) -> fx.Node:
    """Add leading axes of size 1, or merge the first axes, which are static then."""
    shape = node.meta["val"].shape
    for _ in range(rank - len(shape)):
        node = emit(beside.graph, aten.unsqueeze.default, node, 0, beside=beside)
    if len(shape) <= rank:
        return node
    merged = len(shape) - rank + 1
    sizes = [math.prod(shape[:merged]), *shape[merged:]]
    return emit(beside.graph, aten.view.default, node, sizes, beside=beside)


def restore_shape(node: fx.Node, beside: fx.Node) -> fx.Node:
    """Undo `to_rank`: give a node the shape of another."""
    shape, rank = beside.meta["val"].shape, node.meta["val"].ndim
    for _ in range(rank - len(shape)):
        node = emit(beside.graph, aten.squeeze.dim, node, 0, beside=beside)
    if len(shape) <= rank:
        return node
    return emit(beside.graph, aten.view.default, node, [*shape], beside=beside)
