"""Find formulas whose value many elements share, such as the bias correction of Adam.

IREE fuses them with the loops that read them, which then compute them once for each element.
"""

from __future__ import annotations

import torch
from torch import fx

from turbine.capture.crossed_reads import UNFUSED
from turbine.capture.effects import is_pointwise
from turbine.capture.sizes import count_elements
from turbine.capture.work import FORMULAS

# Fewer elements, or elements that fewer share, are not worth a dispatch.
_LEAST_ELEMENTS = 16384
_LEAST_SHARE = 8


def mark_broadcast_formulas(graph: fx.Graph) -> None:
    """Mark values of formulas that loops over many more elements read."""
    formulas: dict[fx.Node, fx.Node] = {}  # those and their views, by the node that computes them
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        read = {formulas[one] for one in node.all_input_nodes if one in formulas}
        if _is_view(node):
            formulas.update((node, one) for one in read)
        elif is_pointwise(node.target):
            shared = {one for one in read if _is_shared(one, node)}
            for one in shared:
                one.meta[UNFUSED] = True
            if read - shared or getattr(node.target, "overloadpacket", None) in FORMULAS:
                formulas[node] = node


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _is_shared(value: fx.Node, reader: fx.Node) -> bool:
    count = count_elements(reader.meta["val"])
    return count >= max(_LEAST_ELEMENTS, _LEAST_SHARE * count_elements(value.meta["val"]))
