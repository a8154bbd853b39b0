"""Sizes that may be symbols: their values in the example, and as expressions to compare.

Comparing symbols themselves would restrict the program to sizes for which the answer holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def hint(size: int | torch.SymInt) -> int:
    """A size at the example's values."""
    return size if isinstance(size, int) else int(size.node.hint or 1)


def count(tensor: torch.Tensor) -> int:
    """How many elements a tensor has at the example's sizes."""
    return prod(map(hint, tensor.shape))


def is_static(tensor: torch.Tensor) -> bool:
    """Whether every size is a number."""
    return all(isinstance(size, int) for size in tensor.shape)


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements, whatever its dynamic sizes are."""
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)


def expression(size: int | torch.SymInt) -> Any:
    """What two sizes have in common if they are equal whatever the example."""
    return size if isinstance(size, int) else size.node.expr


def emit(
    graph: fx.Graph,
    target: Callable[..., Any],
    *args: Any,
    beside: fx.Node | None = None,
    **kwargs: Any,
) -> fx.Node:
    """A new node with the value, and the source line of another, that the importer asks for."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*map(value_of, args), **kwargs)
    if beside is not None and beside.stack_trace is not None:
        node.meta["stack_trace"] = beside.stack_trace
    return node


def sizes_of(graph: fx.Graph, tensor: fx.Node, axes: Iterable[int]) -> list[int | fx.Node]:
    """Sizes as numbers or, where they are dynamic, as nodes."""
    shape = tensor.meta["val"].shape
    return [
        shape[axis]
        if isinstance(shape[axis], int)
        else emit(graph, aten.sym_size.int, tensor, axis)
        for axis in axes
    ]


def value_of(operand: Any) -> Any:
    """What a node stands for at the example's sizes; anything else is itself."""
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand
