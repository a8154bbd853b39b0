"""Matmuls of operands that change with every call.

A program packs its columns of the right operand once, for many rows of the left one, which it
reads in place. Sums stay in registers for all of K, and go to the result from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.library.linear import FASTER_ON, Linear, find_linear
from turbine.library.nodes import constant_nodes, only_user
from turbine.target import Target

aten = torch.ops.aten

M, K, N = tkl.sym.M, tkl.sym.K, tkl.sym.N
BM, BN = tkl.symbols("BM BN")
f32 = tkl.f32


@tk.gen.kernel(N // BN, M // BM)
def matmul(
    x: tkl.InputBuffer[M, K, f32],
    y: tkl.InputBuffer[K, N, f32],
    bias: tkl.InputBuffer[N, f32],
    z: tkl.OutputBuffer[M, N, f32],
) -> None:
    """x @ y + bias."""
    _multiply(x, tkl.load(y, (0, tkl.program_id(0) * BN), (K, BN)), bias, z)


@tk.gen.kernel(N // BN, M // BM)
def matmul_with_transposed(
    x: tkl.InputBuffer[M, K, f32],
    y: tkl.InputBuffer[N, K, f32],
    bias: tkl.InputBuffer[N, f32],
    z: tkl.OutputBuffer[M, N, f32],
) -> None:
    """x @ y.T + bias."""
    rows = tkl.load(y, (tkl.program_id(0) * BN, 0), (BN, K))
    _multiply(x, tkl.transpose(rows), bias, z)


def _multiply(x: Any, columns: Any, bias: Any, z: Any) -> None:
    """Multiply the program's rows by its columns, add the bias, and store."""
    column, row = tkl.program_id(0) * BN, tkl.program_id(1) * BM
    product = tkl.dot(tkl.load(x, (row, 0), (BM, K)), columns)
    tkl.store(z, (row, column), product + tkl.load(bias, (column,), (BN,)))


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 16, BN: 64})
def transpose(x: tkl.InputBuffer[M, N, f32], y: tkl.OutputBuffer[N, M, f32]) -> None:
    """x.T, a vector of the result from each row of x."""
    row, column = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    tkl.store(y, (column, row), tkl.transpose(tkl.load(x, (row, column), (BM, BN))))


# Columns of a program, in the order of preference: whole register tiles of 6 x 64 or 8 x 48.
_COLUMNS = (64, 48)
# Rows of a program: with fewer, packing takes longer than it saves.
_LEAST_ROWS, _MOST_ROWS = 64, 512
# Deeper columns, packed, do not fit into the L2 cache with the rest.
_MOST_DEPTH = 4096
# Multiply-adds: smaller matmuls do not pay for packing and a launch.
_LEAST_WORK = 1 << 24
# Programs for the cores of most machines.
_PROGRAMS = 8


@dataclass(frozen=True)
class Factor:
    """An operand: a matrix, or its transpose."""

    matrix: fx.Node
    is_transposed: bool

    @property
    def shape(self) -> tuple[int | torch.SymInt, int | torch.SymInt]:
        """Its sizes."""
        rows, columns = self.matrix.meta["val"].shape
        return (columns, rows) if self.is_transposed else (rows, columns)

    def transposed(self) -> Factor:
        """Its transpose."""
        return Factor(self.matrix, not self.is_transposed)


@dataclass(frozen=True)
class Matmul:
    """A match: x @ y + bias in f32, or (x @ y).T, which is y.T @ x.T, of sizes blocks divide."""

    node: fx.Node
    linear: Linear
    is_transposed: bool

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """The operands, which earlier replacements may have changed."""
        x, y = map(_factor, self.linear.operands)
        return (y.transposed(), x.transposed()) if self.is_transposed else (x, y)

    @property
    def blocks(self) -> tuple[int, int] | None:
        """Rows and columns of a program: as many rows as leave a program for some cores each."""
        left, right = self.factors
        (rows, depth), columns = left.shape, right.shape[1]
        if not (isinstance(rows, int) and isinstance(depth, int) and isinstance(columns, int)):
            return None
        widths = [width for width in _COLUMNS if columns % width == 0]
        heights = [
            height for height in range(_LEAST_ROWS, min(rows, _MOST_ROWS) + 1) if rows % height == 0
        ]
        if not widths or not heights or depth > _MOST_DEPTH or rows * depth * columns < _LEAST_WORK:
            return None
        panels = columns // widths[0]
        enough = [height for height in heights if rows // height * panels >= _PROGRAMS]
        return max(enough, default=heights[0]), widths[0]

    def is_faster_on(self, target: Target) -> bool:
        """Whether the kernel is faster on a target."""
        return target.vector_bytes in FASTER_ON

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        node, graph, (left, right) = self.node, self.node.graph, self.factors
        bias = self.linear.bias or emit(
            graph, aten.full.default, [right.shape[1]], 0.0, beside=node
        )
        x = left.matrix
        if left.is_transposed:
            x = emit(graph, transpose.op.op, x, beside=node)
        assert self.blocks is not None
        kernel = kernel_for(self.blocks, is_transposed=right.is_transposed)
        return emit(graph, kernel.op.op, x, right.matrix, bias, beside=node)


@cache
def kernel_for(blocks: tuple[int, int], *, is_transposed: bool) -> tk.Kernel:
    """The kernel with these blocks, for a right operand that is transposed or not."""
    rows, columns = blocks
    return (matmul_with_transposed if is_transposed else matmul).using(BM=rows, BN=columns)


def find(region: Region) -> Iterator[Matmul]:
    """Find matmuls in f32 whose right operand is not constant."""
    constant = constant_nodes(region)
    for found in find_linear(region):
        x, y = found.operands
        if x.meta["val"].dtype != torch.float32 or y in constant:
            continue
        match = Matmul(found.node, found, is_transposed=False)
        # The gradient of a weight is a transposed product.
        while found.bias is None and _is_transpose(user := only_user(match.node)):
            match = Matmul(user, found, is_transposed=not match.is_transposed)
        if match.blocks is not None:
            yield match


def _factor(node: fx.Node) -> Factor:
    if not _is_transpose(node):
        return Factor(node, is_transposed=False)
    return _factor(node.all_input_nodes[0]).transposed()


def _is_transpose(node: fx.Node | None) -> TypeGuard[fx.Node]:
    return (
        node is not None
        and node.target is aten.permute.default
        and node.args[1] in ([1, 0], (1, 0))
    )
