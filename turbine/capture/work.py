"""Estimate how much arithmetic a graph does, to choose where it runs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import fx

from turbine.capture.grouped_product import GROUPED_PRODUCT

aten = torch.ops.aten


def mflop(graph: fx.Graph) -> float:
    """Millions of floating point operations of one call, at the example's sizes."""
    return sum(_flop(node) for node in graph.nodes if node.op == "call_function") / 1e6


def _flop(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    inner = _INNER.get(node.target)
    return _count(value) * (2 * inner(node) if inner is not None else 1)


def _count(tensor: torch.Tensor) -> int:
    return prod(_size(d) for d in tensor.shape)


def _size(dim: int | torch.SymInt) -> int:
    return dim if isinstance(dim, int) else int(dim.node.hint or 1)


def _operand(node: fx.Node, index: int) -> torch.Tensor:
    operand: Any = node.args[index]
    value: torch.Tensor = operand.meta["val"]
    return value


def _contracted(index: int) -> Callable[[fx.Node], int]:
    return lambda node: _size(_operand(node, index).shape[-1])


def _convolved(node: fx.Node) -> int:
    weight = _operand(node, 1)
    return prod(_size(d) for d in weight.shape[1:])


# Multiply-adds behind one element of the result.
_INNER: dict[Any, Callable[[fx.Node], int]] = {
    aten.mm.default: _contracted(0),
    aten.bmm.default: _contracted(0),
    aten.addmm.default: _contracted(1),
    aten.baddbmm.default: _contracted(1),
    aten.convolution.default: _convolved,
    GROUPED_PRODUCT: _contracted(0),
}
