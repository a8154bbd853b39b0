"""Sums of products, for which IREE has no fast code.

IREE takes the sum of x * y for a contraction, and its code for those that are no matmul is slow:
for rows of 2048 x 2048 four times as slow as the sum of x + y. With a choice after the product it
is a sum like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from turbine.capture.nodes import emit, value_of
from turbine.capture.program import Region
from turbine.library.nodes import only_user
from turbine.target import Target

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """A match: a product of two tensors that is summed."""

    node: fx.Node

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Choose the factor where it is NaN, as the product is; return the result."""
        node, (x, y) = self.node, self.node.args
        assert isinstance(x, fx.Node)
        assert isinstance(y, fx.Node)
        is_nan = emit(node.graph, aten.ne.Tensor, x, x, beside=node)
        product = emit(node.graph, aten.mul.Tensor, x, y, beside=node)
        return emit(node.graph, aten.where.self, is_nan, x, product, beside=node)


def find(region: Region) -> Iterator[Product]:
    """Find products of two tensors of one dtype that nothing but a sum reads."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        values = [value_of(one) for one in (node, *node.args)]
        if all(isinstance(value, torch.Tensor) for value in values):
            dtypes = {value.dtype for value in values}
            if dtypes <= _DTYPES and len(dtypes) == 1 and _is_summed(node):
                yield Product(node)


_DTYPES = {torch.float32, torch.float64}


def _is_summed(node: fx.Node) -> bool:
    user = only_user(node)
    # Long sums are in stages.
    while user is not None and user.target is aten.view.default:
        user = only_user(user)
    return user is not None and user.target is aten.sum.dim_IntList
