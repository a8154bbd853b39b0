"""Find formulas between matmuls, such as the gelu of a transformer, that need loops of their own.

IREE fuses them with the packing and unpacking of a matmul's tiles. Such loops go over 8x8 elements
and run a formula 2 to 10 times slower; reading and writing the values once more takes less.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.crossed_reads import UNFUSED
from turbine.capture.effects import is_pointwise
from turbine.capture.sizes import count_elements
from turbine.capture.work import FORMULAS

aten = torch.ops.aten

_MATMULS = (aten.mm.default, aten.addmm.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default)
# Fewer elements are not worth two more dispatches.
_LEAST_ELEMENTS = 32768


def mark_long_formulas(graph: fx.Graph) -> None:
    """Mark matmuls that a formula reads, and values with formulas that a matmul reads."""
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        if node not in seen and _is_formula(node):
            loop = _loop_around(node)
            seen |= loop
            for one in loop:
                _mark_neighbours(one)


def _is_formula(node: fx.Node) -> bool:
    value = node.meta.get("val")
    is_large = isinstance(value, torch.Tensor) and count_elements(value) >= _LEAST_ELEMENTS
    return is_large and getattr(node.target, "overloadpacket", None) in FORMULAS


def _loop_around(formula: fx.Node) -> set[fx.Node]:
    """The pointwise ops, and views, that are fused with a formula: those of as many elements."""
    count = count_elements(formula.meta["val"])
    loop, left = {formula}, [formula]
    while left:
        node = left.pop()
        for near in (*node.all_input_nodes, *node.users):
            if near not in loop and _is_fused(near) and count_elements(near.meta["val"]) == count:
                loop.add(near)
                left.append(near)
    return loop


def _is_fused(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    target: Any = node.target
    return target in _VIEWS or is_pointwise(target)


def _mark_neighbours(node: fx.Node) -> None:
    for operand in node.all_input_nodes:
        if operand.target in _MATMULS:
            operand.meta[UNFUSED] = True
    if any(user.target in _MATMULS for user in node.users):
        node.meta[UNFUSED] = True
