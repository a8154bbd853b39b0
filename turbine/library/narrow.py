"""Matmuls of 16-bit floats on CPUs: computed in f32 and rounded once, as PyTorch does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from turbine.capture.crossed_reads import UNFUSED
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.library.nodes import convert, find_matmuls
from turbine.target import Target

NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Product:
    """A match: a matmul whose operands and result are of one 16-bit dtype."""

    node: fx.Node

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU: IREE's code for narrow operands has no vectors."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Compute the product in f32; return it as narrow as it was."""
        node, op = self.node, self.node.target
        assert isinstance(op, torch._ops.OpOverload)
        args = fx.map_arg(node.args, lambda operand: widen(operand, node))
        product = emit(node.graph, op, *args, beside=node)
        return convert(product, node.meta["val"].dtype, node)


def widen(operand: fx.Node, beside: fx.Node) -> fx.Node:
    """An operand in f32. IREE would fold a conversion into a matmul, whose code is slow then."""
    wide = convert(operand, torch.float32, beside)
    wide.meta[UNFUSED] = True
    return wide


def find(region: Region) -> Iterator[Product]:
    """Find matmuls of 16-bit floats."""
    for node in find_matmuls(region):
        if node.meta["val"].dtype in NARROW:
            yield Product(node)
