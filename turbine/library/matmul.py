"""Matmuls of operands that change with every call.

A program packs its columns of the right operand once, for many rows of the left one, which it
reads in place. Sums stay in registers for all of K, and go to the result from there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.library.linear import FASTER_ON, Linear, find_linear
from turbine.library.nodes import Factor, constant_nodes, factor_of, is_transpose, only_user
from turbine.target import Target

aten = torch.ops.aten

M, K, N = tkl.sym.M, tkl.sym.K, tkl.sym.N
BM, BN, BK = tkl.symbols("BM BN BK")
f32 = tkl.f32


@cache
def kernel_for(blocks: tuple[int, int], transposed: tuple[bool, bool]) -> tk.Kernel:
    """The kernel of x @ y + bias, with x or y or both transposed in memory."""
    left, right = (K, M) if transposed[0] else (M, K), (N, K) if transposed[1] else (K, N)

    @tk.gen.kernel(N // BN, M // BM, blocks={BM: blocks[0], BN: blocks[1]})
    def matmul(
        x: tkl.InputBuffer[*left, f32],
        y: tkl.InputBuffer[*right, f32],
        bias: tkl.InputBuffer[N, f32],
        z: tkl.OutputBuffer[M, N, f32],
    ) -> None:
        column, row = tkl.program_id(0) * BN, tkl.program_id(1) * BM
        rows = _load(x, (row, 0), (BM, K), transposed[0])
        product = tkl.dot(rows, _load(y, (0, column), (K, BN), transposed[1]))
        tkl.store(z, (row, column), product + tkl.load(bias, (column,), (BN,)))

    return matmul


def _load(x: Any, start: tuple[Any, Any], shape: tuple[Any, Any], is_transposed: bool) -> Any:
    if not is_transposed:
        return tkl.load(x, start, shape)
    return tkl.transpose(tkl.load(x, start[::-1], shape[::-1]))


@tk.gen.kernel(K // BK)
def partial_products(
    x: tkl.InputBuffer[M, K, f32],
    y: tkl.InputBuffer[N, K, f32],
    z: tkl.OutputBuffer[K // BK, M, N, f32],
) -> None:
    """Summands of x @ y.T, each of a block of K."""
    part = tkl.program_id(0)
    rows, columns = tkl.load(x, (0, part * BK), (M, BK)), tkl.load(y, (0, part * BK), (N, BK))
    tkl.store(z, (part, 0, 0), tkl.dot(rows, tkl.transpose(columns)))


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 16, BN: 64})
def transpose(x: tkl.InputBuffer[M, N, f32], y: tkl.OutputBuffer[N, M, f32]) -> None:
    """x.T, a vector of the result from each row of x."""
    row, column = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    tkl.store(y, (column, row), tkl.transpose(tkl.load(x, (row, column), (BM, BN))))


# Columns of a program, in the order of preference: whole register tiles of 6 x 64, 8 x 48, ...
_COLUMNS = (64, 48, 32, 16)
# Rows of a program: with fewer, packing takes longer than it saves, unless columns are short.
_LEAST_ROWS, _MOST_ROWS = 64, 512
_SHORT = 192
# Elements of packed columns that fit into the L2 cache with the rest.
_MOST_PACKED = 4096 * 64
# Multiply-adds: smaller matmuls do not pay for packing and a launch, those of many columns do soon.
_LEAST_WORK, _LEAST_WIDE_WORK, _WIDE = 1 << 24, 1 << 21, 1024
# Programs for the cores of most machines.
_PROGRAMS = 8
# A long contraction with a small result is split, into parts of so many steps.
_SMALL_RESULT, _LONG = 1 << 14, 2048
_LEAST_STEPS, _MOST_STEPS = 256, 1024


@dataclass(frozen=True)
class Matmul:
    """A match: x @ y + bias in f32, or (x @ y).T, which is y.T @ x.T, of sizes blocks divide."""

    node: fx.Node
    linear: Linear
    is_transposed: bool

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """The operands, which earlier replacements may have changed."""
        x, y = map(factor_of, self.linear.operands)
        return (y.transposed(), x.transposed()) if self.is_transposed else (x, y)

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Rows, depth and columns, if they are static."""
        left, right = self.factors
        (rows, depth), columns = left.shape, right.shape[1]
        if isinstance(rows, int) and isinstance(depth, int) and isinstance(columns, int):
            return rows, depth, columns
        return None

    @property
    def blocks(self) -> tuple[int, int] | None:
        """Rows and columns of a program: as many rows as leave a program for some cores each."""
        if self.sizes is None:
            return None
        rows, depth, columns = self.sizes
        widths = [width for width in _COLUMNS if columns % width == 0]
        is_short = depth <= _SHORT and not self.factors[1].is_transposed
        heights = _divisors(rows, min(rows, _LEAST_ROWS) if is_short else _LEAST_ROWS, _MOST_ROWS)
        least = _LEAST_WIDE_WORK if columns >= _WIDE else _LEAST_WORK
        if not widths or not heights or rows * depth * columns < least:
            return None
        if depth * widths[0] > _MOST_PACKED:
            return None
        panels = columns // widths[0]
        enough = [height for height in heights if rows // height * panels >= _PROGRAMS]
        return max(enough, default=heights[0]), widths[0]

    @property
    def steps(self) -> int | None:
        """Steps of a part of the contraction, if it is worth splitting."""
        left, right = self.factors
        if self.sizes is None or left.is_transposed or not right.is_transposed:
            return None
        rows, depth, columns = self.sizes
        if rows * columns > _SMALL_RESULT or depth < _LONG or self.linear.bias is not None:
            return None
        return max(_divisors(depth, _LEAST_STEPS, _MOST_STEPS), default=None)

    def is_faster_on(self, target: Target) -> bool:
        """Whether the kernel is faster on a target."""
        return target.vector_bytes in FASTER_ON

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        node, graph, (left, right) = self.node, self.node.graph, self.factors
        if self.steps is not None:
            kernel = partial_products.using(BK=self.steps)
            parts = emit(graph, kernel.op.op, left.matrix, right.matrix, beside=node)
            return emit(graph, aten.sum.dim_IntList, parts, [0], beside=node)
        assert self.blocks is not None
        bias = self.linear.bias or emit(
            graph, aten.full.default, [right.shape[1]], 0.0, beside=node
        )
        if left.is_transposed and right.shape[1] > self.blocks[1]:
            # Once for all panels of columns.
            left = Factor(emit(graph, transpose.op.op, left.matrix, beside=node), False)
        kernel = kernel_for(self.blocks, (left.is_transposed, right.is_transposed))
        return emit(graph, kernel.op.op, left.matrix, right.matrix, bias, beside=node)


def _divisors(size: int, least: int, most: int) -> list[int]:
    return [one for one in range(least, min(size, most) + 1) if size % one == 0]


def find(region: Region) -> Iterator[Matmul]:
    """Find matmuls in f32 whose right operand is not constant."""
    constant = constant_nodes(region)
    for found in find_linear(region):
        x, y = found.operands
        if x.meta["val"].dtype != torch.float32 or y in constant:
            continue
        match = Matmul(found.node, found, is_transposed=False)
        # The gradient of a weight is a transposed product.
        while found.bias is None and is_transpose(user := only_user(match.node)):
            match = Matmul(user, found, is_transposed=not match.is_transposed)
        if match.blocks is not None or match.steps is not None:
            yield match
