"""Decompose ops of control flow after PyTorch has traced it.

PyTorch traces the body of a loop or a branch several times, for gradients and without views.
Rules of views would hide from it which results share memory, and copies that are equal would become
one. In bodies, all ops are decomposed, since PyTorch's library cannot be called between them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.control_flow import all_bodies
from turbine.capture.decompositions import Table
from turbine.capture.nodes import inline, put_in_place


def early_rules(table: Table) -> Table:
    """The rules to trace control flow with."""
    return {op: rule for op, rule in table.items() if not _is_late(op)}


def decompose_late(module: fx.GraphModule, table: Table) -> None:
    """Decompose what is left: views of a graph, and all ops of its bodies."""
    _decompose(module, {op: rule for op, rule in table.items() if _is_late(op)})
    for body in all_bodies(module):
        _decompose(body, table)


def _is_late(op: Any) -> bool:
    return op.is_view or op is torch.ops.aten.detach_copy.default


def _decompose(module: fx.GraphModule, table: Table) -> None:
    nodes = [node for node in module.graph.nodes if node.target in table]
    for node in nodes:
        put_in_place(node, inline(node, _call(node), node.all_input_nodes, table))
    if nodes:
        module.recompile()


def _call(node: fx.Node) -> Any:
    """The call of a node as a function of its operands."""
    op: Any = node.target

    def call(*values: Any) -> Any:
        given = dict(zip(node.all_input_nodes, values, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        return op(*args, **kwargs)

    return call
