"""Matmuls with weights.

A constant weight is packed once, when it is loaded: K rows become panels of W columns, each panel
row by row. A program reads one panel in order, and rows of x in place. Sums stay in registers for
all of K.

few_rows.py has products of few rows, which read a weight as it is.
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
from turbine.library.nodes import MatmulNode, constant_nodes, convert, find_matmuls
from turbine.target import Target

aten = torch.ops.aten

M, K, N = tkl.sym.M, tkl.sym.K, tkl.sym.N
P, W = tkl.sym.P, tkl.sym.W  # number of panels, and columns of a panel
BM = tkl.sym.BM
f32 = tkl.f32
T, U = tkl.types.T, tkl.types.U  # of x and the result, and of the weight


# Blocks of 64 rows: enough programs for many cores, and few reads of the weight.
@tk.gen.kernel(P, M // BM, blocks={BM: 64})
def linear(
    x: tkl.InputBuffer[M, K, T],
    weight: tkl.InputBuffer[P, K, W, U],
    bias: tkl.InputBuffer[N, f32],
    y: tkl.OutputBuffer[M, N, T],
) -> None:
    """x @ weight + bias, for blocks of rows and panels of columns."""
    panel, row = tkl.program_id(0), tkl.program_id(1) * BM
    rows = tkl.load(x, (row, 0), (BM, K))
    columns = tkl.load(weight, (panel, 0, 0), (None, K, W))
    product = tkl.dot(rows, columns) + tkl.load(bias, (panel * W,), (W,))
    tkl.store(y, (row, panel * W), product.to(rows.dtype))


# With AMX, a program packs its panel once for all of its rows.
linear_by_amx = linear.using(BM=256)


# Vector register sizes in bytes for which the kernel is faster than IREE's code.
FASTER_ON = {64}
# Columns of a panel in vectors, best first: with six, eight or twelve rows they fill the registers.
# A register tile goes to the result without a copy where panels divide the columns.
_PANEL_VECTORS = (4, 3, 2)
_USUAL_VECTORS = 3
# Elements of a panel that fit into the L2 cache with the rest.
_MOST_PACKED = 4096 * 32
# Columns of a panel for AMX, whose contraction is a multiple of a row of its registers.
_AMX_COLUMNS, _AMX_DEPTH = 32, 32
_FLOAT_BYTES = 4
# Dtypes of x and the weight. Sums are in f32, as in PyTorch. Without AMX the kernel widens panels
# of the weight; weights stay as narrow as they are.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Smaller matmuls do not pay for a kernel.
_LEAST_COLUMNS, _LEAST_DEPTH = 32, 32


@dataclass(frozen=True)
class Linear(MatmulNode):
    """A match: x @ weight + bias with a constant weight."""

    @property
    def is_supported(self) -> bool:
        """Whether kernels support the operands."""
        return self.operands[0].meta["val"].dtype in _DTYPES and self.has_row

    @property
    def is_large(self) -> bool:
        """Whether the weight is large enough for a kernel."""
        depth, columns = self.operands[1].meta["val"].shape
        return bool(columns >= _LEAST_COLUMNS and depth >= _LEAST_DEPTH)

    def is_faster_on(self, target: Target) -> bool:
        """Whether the kernel is faster on a target."""
        return target.vector_bytes in FASTER_ON

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel with a packed weight; return the result."""
        node, graph, (x, weight) = self.node, self.node.graph, self.operands
        depth, columns = weight.meta["val"].shape
        is_for_amx = target.has_amx and x.meta["val"].dtype == torch.bfloat16
        if is_for_amx and depth % _AMX_DEPTH == 0:
            kernel, width = linear_by_amx, _AMX_COLUMNS
        else:
            kernel, width = linear, panel_width(depth, columns, target)
            x = convert(x, torch.float32, node)
        panels = -(-columns // width)
        rest = panels * width - columns
        padded = emit(graph, aten.constant_pad_nd.default, weight, [0, rest], beside=node)
        split = emit(graph, aten.view.default, padded, [depth, panels, width], beside=node)
        turned = emit(graph, aten.permute.default, split, [1, 0, 2], beside=node)
        packed = emit(
            graph, aten.clone.default, turned, memory_format=torch.contiguous_format, beside=node
        )
        bias = self.bias or emit(graph, aten.full.default, [columns], 0.0, beside=node)
        bias = convert(bias, torch.float32, node)
        result = emit(graph, kernel.op.op, x, packed, bias, beside=node)
        return convert(result, node.meta["val"].dtype, node)


def panel_width(depth: int, columns: int, target: Target) -> int:
    """The columns of a panel: such that no column is unused, if there is such a width."""
    lanes = target.vector_bytes // _FLOAT_BYTES
    widths = [vectors * lanes for vectors in _PANEL_VECTORS]
    fitting = (w for w in widths if columns % w == 0 and depth * w <= _MOST_PACKED)
    return next(fitting, _USUAL_VECTORS * lanes)


def find(region: Region) -> Iterator[Linear]:
    """Find matmuls with constant weights."""
    constant = constant_nodes(region)
    for found in find_linear(region):
        if found.is_large and found.operands[1] in constant:
            yield found


def find_linear(region: Region) -> Iterator[Linear]:
    """Find matmuls, with or without a bias, that a kernel supports."""
    for node in find_matmuls(region):
        if node.target is not aten.bmm.default and Linear(node).is_supported:
            yield Linear(node)
