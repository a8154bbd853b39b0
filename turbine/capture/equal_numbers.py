"""Merge ops that compute the same number: optimizers repeat them for each weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.effects import is_ordered


def merge_numbers(graph: fx.Graph) -> None:
    """Merge equal ops whose results have one element; results of the graph stay."""
    (output,) = graph.find_nodes(op="output")
    kept = set(output.all_input_nodes)
    known: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not _is_number(node) or is_ordered(node):
            continue
        key = str(node.target), str(node.args), str(node.kwargs)
        first = known.setdefault(key, node)
        if first is not node and node not in kept:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.layout == torch.strided
