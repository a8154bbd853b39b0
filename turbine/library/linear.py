"""Matmuls with a weight that is packed once, when an artifact is loaded.

A weight of K rows is stored as panels of W columns, each panel row by row: a program reads one
panel in order, and rows of x in place. Sums stay in registers for all of K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.library.nodes import constant_nodes
from turbine.target import Target

aten = torch.ops.aten

M, K, N = tkl.sym.M, tkl.sym.K, tkl.sym.N
P, W = tkl.sym.P, tkl.sym.W  # number of panels, and columns of a panel
BM = tkl.sym.BM
f32 = tkl.f32


# Blocks of 64 rows: enough programs for many cores, and few reads of the weight.
@tk.gen.kernel(P, M // BM, blocks={BM: 64})
def linear(
    x: tkl.InputBuffer[M, K, f32],
    weight: tkl.InputBuffer[P, K, W, f32],
    bias: tkl.InputBuffer[N, f32],
    y: tkl.OutputBuffer[M, N, f32],
) -> None:
    """x @ weight + bias, for blocks of rows and panels of columns."""
    panel, row = tkl.program_id(0), tkl.program_id(1) * BM
    rows = tkl.load(x, (row, 0), (BM, K))
    columns = tkl.load(weight, (panel, 0, 0), (None, K, W))
    product = tkl.dot(rows, columns) + tkl.load(bias, (panel * W,), (W,))
    tkl.store(y, (row, panel * W), product)


# Vector register sizes in bytes for which the kernel is faster than IREE's code.
FASTER_ON = {64}
# Columns of a panel in vectors: with eight rows they fill the registers.
_PANEL_VECTORS = 3
_FLOAT_BYTES = 4
# Dtypes of x and the weight. Narrow ones are widened, weights when an artifact is loaded: sums
# are in f32, as in PyTorch.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Smaller matmuls do not pay for a kernel.
_LEAST_COLUMNS, _LEAST_DEPTH = 32, 32


@dataclass(frozen=True)
class Linear:
    """A match: x @ weight + bias with a constant weight."""

    node: fx.Node

    @property
    def operands(self) -> tuple[fx.Node, fx.Node]:
        """x and the weight."""
        x, weight = self.node.args[-2:]
        assert isinstance(x, fx.Node)
        assert isinstance(weight, fx.Node)
        return x, weight

    @property
    def bias(self) -> fx.Node | None:
        """The bias, if there is one."""
        first = self.node.args[0]
        assert isinstance(first, fx.Node)
        return first if len(self.node.args) > len(self.operands) else None

    @property
    def is_worth_it(self) -> bool:
        """Whether the kernel supports the operands, and they are large enough."""
        x, weight = (operand.meta["val"] for operand in self.operands)
        if x.dtype not in _DTYPES:
            return False
        if self.bias is not None and self.bias.meta["val"].shape != weight.shape[1:]:
            return False
        depth, columns = weight.shape
        return bool(columns >= _LEAST_COLUMNS and depth >= _LEAST_DEPTH)

    def is_faster_on(self, target: Target) -> bool:
        """Whether the kernel is faster on a target."""
        return target.vector_bytes in FASTER_ON

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel with a packed weight; return the result."""
        node, graph, (x, weight) = self.node, self.node.graph, self.operands
        width = _PANEL_VECTORS * target.vector_bytes // _FLOAT_BYTES
        depth, columns = weight.meta["val"].shape
        panels = -(-columns // width)
        rest = panels * width - columns
        x, weight = (_convert(one, torch.float32, node) for one in (x, weight))
        padded = emit(graph, aten.constant_pad_nd.default, weight, [0, rest], beside=node)
        split = emit(graph, aten.view.default, padded, [depth, panels, width], beside=node)
        turned = emit(graph, aten.permute.default, split, [1, 0, 2], beside=node)
        packed = emit(
            graph, aten.clone.default, turned, memory_format=torch.contiguous_format, beside=node
        )
        bias = self.bias or emit(graph, aten.full.default, [columns], 0.0, beside=node)
        bias = _convert(bias, torch.float32, node)
        result = emit(graph, linear.op.op, x, packed, bias, beside=node)
        return _convert(result, node.meta["val"].dtype, node)


def _convert(node: fx.Node, dtype: torch.dtype, place: fx.Node) -> fx.Node:
    if node.meta["val"].dtype == dtype:
        return node
    return emit(place.graph, aten._to_copy.default, node, dtype=dtype, beside=place)


def find(region: Region) -> Iterator[Linear]:
    """Find matmuls with weights."""
    constant = constant_nodes(region)
    for node in region.graph.graph.nodes:
        # addmm may scale its operands.
        if node.target in (aten.mm.default, aten.addmm.default) and not node.kwargs:
            found = Linear(node)
            if found.operands[1] in constant and found.is_worth_it:
                yield found
