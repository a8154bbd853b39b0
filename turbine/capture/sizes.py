"""Sizes that may be symbols: their values in the example, and expressions to compare.

Comparing the symbols would add a guard that restricts the program.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import fx

from turbine.capture.nodes import emit

aten = torch.ops.aten


def hint(size: int | torch.SymInt) -> int:
    """A size at the example's values."""
    return size if isinstance(size, int) else int(size.node.hint or 1)


def count_elements(tensor: torch.Tensor) -> int:
    """How many elements a tensor has at the example's sizes."""
    return prod(map(hint, tensor.shape))


def is_static(tensor: torch.Tensor) -> bool:
    """Whether every size is a number."""
    return all(isinstance(size, int) for size in tensor.shape)


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements, whatever its dynamic sizes are."""
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)


def expression(size: int | torch.SymInt) -> Any:
    """The expression of a size; equal expressions are equal sizes for every example."""
    return size if isinstance(size, int) else size.node.expr


def sizes_of(graph: fx.Graph, tensor: fx.Node, axes: Iterable[int]) -> list[int | fx.Node]:
    """Static sizes as numbers, dynamic ones as nodes."""
    shape = tensor.meta["val"].shape
    return [
        shape[axis]
        if isinstance(shape[axis], int)
        else emit(graph, aten.sym_size.int, tensor, axis)
        for axis in axes
    ]


def multiply(graph: fx.Graph, sizes: Iterable[int | fx.Node]) -> int | fx.Node:
    """The product of sizes, with numbers folded."""
    sizes = list(sizes)
    known = prod(size for size in sizes if isinstance(size, int))
    unknown = [size for size in sizes if isinstance(size, fx.Node)]
    factors: list[int | fx.Node] = [*unknown, known] if known != 1 or not unknown else [*unknown]
    return reduce(lambda a, b: emit(graph, operator.mul, a, b), factors)
