"""Products of few rows and a matrix, which is read once, as fast as memory is.

A matrix that is stored column by column gives dot products; of one that is stored row by row,
blocks of rows give summands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.effects import is_pointwise
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.sizes import hint, sizes_of
from turbine.library.nodes import (
    MatmulNode,
    constant_nodes,
    convert,
    find_matmuls,
    is_transpose,
    restore_shape,
    skip_views,
    to_rank,
    transpose,
)
from turbine.target import Target

aten = torch.ops.aten

B, M, K, N = tkl.sym.B, tkl.sym.M, tkl.sym.K, tkl.sym.N
BK, BN = tkl.symbols("BK BN")
f32 = tkl.f32
T = tkl.types.T


@tk.gen.kernel(B, N // BN, M, blocks={BN: 8})
def products_of_columns(
    x: tkl.InputBuffer[B, M, K, f32],
    matrix: tkl.InputBuffer[B, N, K, T],
    bias: tkl.InputBuffer[N, f32],
    y: tkl.OutputBuffer[B, M, N, f32],
) -> None:
    """x @ matrix.T + bias, for blocks of columns."""
    batch, column, row = tkl.program_id(0), tkl.program_id(1) * BN, tkl.program_id(2)
    columns = tkl.load(matrix, (batch, column, 0), (None, BN, K)).to(f32)
    products = columns * tkl.load(x, (batch, row, 0), (None, None, K))
    tkl.store(y, (batch, row, column), tkl.sum(products, axis=1) + tkl.load(bias, (column,), (BN,)))


# Rows of the matrix that a step adds to the sums.
_STEP = 16


@tk.gen.kernel(B, tkl.cdiv(K, BK), N // BN, M, blocks={BK: 128})
def summands_of_rows(
    x: tkl.InputBuffer[B, M, K, f32],
    matrix: tkl.InputBuffer[B, K, N, T],
    y: tkl.OutputBuffer[B, tkl.cdiv(K, BK), M, N, f32],
) -> None:
    """Summands of x @ matrix, each of a block of rows."""
    batch, part, row = tkl.program_id(0), tkl.program_id(1), tkl.program_id(3)
    column = tkl.program_id(2) * BN

    @tkl.for_loop(0, BK // _STEP, init_args=[tkl.zeros((BN,), f32)])
    def total(step: Any, summed: Any) -> Any:
        start = part * BK + step * _STEP
        rows = tkl.load(matrix, (batch, start, column), (None, _STEP, BN)).to(f32)
        factors = tkl.load(x, (batch, row, start), (None, None, _STEP))
        return summed + tkl.sum(rows * factors[:, None], axis=0)

    tkl.store(y, (batch, part, row, column), total[0])


# Columns of a program, in the order of preference.
_WIDTHS = (512, 256, 128, 64)
# With more rows, a matmul in blocks is faster; smaller matrices do not pay for a kernel.
_FEW_ROWS, _LEAST_COLUMNS, _LEAST_DEPTH = 4, 32, 32
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Product(MatmulNode):
    """A match: few rows @ matrix + bias; or matrix @ few columns, computed as its transpose."""

    is_transposed: bool

    @property
    def rows(self) -> fx.Node:
        """The rows, or columns."""
        return self.operands[self.is_transposed]

    @property
    def matrix(self) -> fx.Node:
        """The matrix that is read once."""
        return self.operands[not self.is_transposed]

    @property
    def is_by_column(self) -> bool:
        """Whether columns of the matrix are contiguous, or rows of it if it is on the left."""
        return _is_turned(self.matrix) != self.is_transposed

    @property
    def is_supported(self) -> bool:
        """Whether kernels support the operands."""
        rows, matrix = self.rows.meta["val"], self.matrix.meta["val"]
        order = -1 if self.is_transposed else 1
        few, depth = rows.shape[-2:][::order]
        columns = matrix.shape[-2:][::order][1]
        has_row = self.bias is None or (self.has_row and not self.is_transposed)
        is_few = isinstance(few, int) and few <= _FEW_ROWS
        is_large = hint(columns) >= _LEAST_COLUMNS and hint(depth) >= _LEAST_DEPTH
        return rows.dtype in _DTYPES and is_few and is_large and has_row

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        node, dtype = self.node, self.node.meta["val"].dtype
        rows = convert(self.rows, torch.float32, node)
        rows = to_rank(transpose(rows) if self.is_transposed else rows, 3, node)
        is_turned = self.is_by_column != self.is_transposed
        matrix = to_rank(transpose(self.matrix) if is_turned else self.matrix, 3, node)
        product = self._by_column(rows, matrix) if self.is_by_column else self._by_row(rows, matrix)
        product = convert(product, dtype, node)
        return restore_shape(transpose(product) if self.is_transposed else product, node)

    def _by_column(self, rows: fx.Node, matrix: fx.Node) -> fx.Node:
        columns = sizes_of(self.node.graph, matrix, [1])
        bias = self.bias or emit(self.node.graph, aten.full.default, columns, 0.0, beside=self.node)
        bias = convert(bias, torch.float32, self.node)
        op = products_of_columns.op.op
        return emit(self.node.graph, op, rows, matrix, bias, beside=self.node)

    def _by_row(self, rows: fx.Node, matrix: fx.Node) -> fx.Node:
        columns = hint(matrix.meta["val"].shape[-1])
        width = min(_WIDTHS, key=lambda width: -columns % width)
        parts = emit(
            self.node.graph, summands_of_rows.using(BN=width).op.op, rows, matrix, beside=self.node
        )
        product = emit(self.node.graph, aten.sum.dim_IntList, parts, [1], beside=self.node)
        if self.bias is None:
            return product
        return emit(self.node.graph, aten.add.Tensor, product, self.bias, beside=self.node)


def find(region: Region) -> Iterator[Product]:
    """Find matmuls of few rows, or few columns, that read a matrix as it is stored."""
    constant = constant_nodes(region)
    for node in find_matmuls(region):
        for is_transposed in (False, True):
            found = Product(node, is_transposed)
            # Constant matrices that are stored row by row are packed.
            if (
                found.is_supported
                and _is_stored(found.matrix)
                and (found.is_by_column or found.matrix not in constant)
            ):
                yield found
                break


def _is_stored(matrix: fx.Node) -> bool:
    """Whether a matrix is in memory as it is, or transposed: no loop has to write it first."""
    source = skip_views(matrix)
    source = source.all_input_nodes[0] if is_transpose(source) else source
    while source.target in _RESHAPES:
        source = source.all_input_nodes[0]
    is_view = isinstance(source.target, torch._ops.OpOverload) and source.target.is_view
    return not is_view and not is_pointwise(source.target)


_RESHAPES = (aten.view.default, aten.unsqueeze.default, aten.squeeze.dim)


def _is_turned(matrix: fx.Node) -> bool:
    """Whether columns are contiguous: of an argument, or of a transpose of what is in memory."""
    matrix = skip_views(matrix)
    value = matrix.meta["val"]
    if is_transpose(matrix):
        return not _is_turned(matrix.all_input_nodes[0])
    return matrix.op == "placeholder" and value.dim() == 2 and value.stride() == (1, value.shape[0])
