"""Expand convolutions after the other ops, and note their operands for a kernel that computes them.

`expand` replaces a convolution by the ops of its rule; `find` gives it back from the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from turbine.capture.decompositions import Table
from turbine.capture.nodes import inline
from turbine.capture.rules.convolution import convolution, per_axis

aten = torch.ops.aten


@dataclass(frozen=True)
class Convolution:
    """A convolution that is not transposed."""

    node: fx.Node  # whose value it is
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def keep_whole(table: Table) -> Table:
    """The table with our rule for transposed convolutions only."""
    return {op: _if_transposed if r is convolution else r for op, r in table.items()}


def _if_transposed(*args: Any) -> Any:
    is_transposed = args[6]
    return convolution(*args) if is_transposed else NotImplemented


def expand(module: fx.GraphModule, table: Table) -> None:
    """Replace convolutions by the ops of our rule, if it is in the table."""
    graph = module.graph
    nodes = graph.find_nodes(op="call_function", target=aten.convolution.default)
    if not nodes or table.get(aten.convolution.default) is not convolution:
        return
    for node in nodes:
        result = _inline(node, table)
        if result is None:
            continue
        x, weight, bias, *settings = node.args
        names = [None if one is None else one.name for one in (x, weight, bias)]
        name = node.name
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        result.name = name  # the signature refers to results by name
        result.meta[_KEY] = names, settings
    module.recompile()


_KEY = "convolution"


def _inline(node: fx.Node, table: Table) -> fx.Node | None:
    """Add the ops of the rule before a node; the result, or None if the rule does not apply."""
    x, weight, bias, *settings = node.args
    operands = [one for one in (x, weight, bias) if isinstance(one, fx.Node)]

    def call(*values: Any) -> Any:
        result = convolution(*values, *[None] * (bias is None), *settings)
        if result is NotImplemented:
            raise _NotApplicableError
        return result

    try:
        result = inline(node, call, operands, table)
    except _NotApplicableError:
        return None
    assert isinstance(result, fx.Node)
    return result


class _NotApplicableError(Exception):
    pass


def find(graph: fx.Graph) -> Iterator[Convolution]:
    """Find convolutions, whole or expanded."""
    named = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        args: Any = node.args
        if _KEY in node.meta:
            names, settings = node.meta[_KEY]
            if not set(names) <= {None, *named}:
                continue  # a pass replaced an operand
            args = *(None if name is None else named[name] for name in names), *settings
        elif node.target is not aten.convolution.default:
            continue
        x, weight, bias, stride, padding, dilation, is_transposed, _, groups = args
        axes = node.meta["val"].dim() - 2
        lists = [per_axis(one, axes) for one in (stride, padding, dilation)]
        if not is_transposed:
            yield Convolution(node, x, weight, bias, lists[0], lists[1], lists[2], groups)
