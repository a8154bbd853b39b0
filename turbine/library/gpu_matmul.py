"""Matmuls on GPUs: blocks of the result, summed in f32 over blocks of K."""

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
from turbine.capture.sizes import hint
from turbine.library.nodes import Factor, MatmulNode, factor_of, find_matmuls, skip_views
from turbine.target import Target

aten = torch.ops.aten

B, M, K, N = tkl.symbols("B M K N")
BM, BN, BK = tkl.symbols("BM BN BK")
T = tkl.types.T
f32 = tkl.f32


@dataclass(frozen=True)
class Form:
    """A kernel: which operands are transposed in memory, and its blocks."""

    transposed: tuple[bool, bool]
    rows: int
    columns: int
    depth: int

    @property
    def blocks(self) -> dict[Any, int]:
        """Block sizes by symbol."""
        return {BM: self.rows, BN: self.columns, BK: self.depth}


@cache
def plain(form: Form) -> tk.Kernel:
    """The kernel of x @ y, with a bias or without."""
    left, right = _shapes(form)

    @tk.gen.kernel(M // BM, N // BN, blocks=form.blocks)
    def matmul(
        x: tkl.InputBuffer[*left, T],
        y: tkl.InputBuffer[*right, T],
        z: tkl.OutputBuffer[M, N, T],
        bias: tkl.InputBuffer[N, T] | None = None,
    ) -> None:
        row, column = tkl.program_id(0) * BM, tkl.program_id(1) * BN
        product = _product(form, x, y, (), row, column)
        if bias is not None:
            product = product + tkl.load(bias, (column,), (BN,))
        tkl.store(z, (row, column), product)

    return matmul


@cache
def batched(form: Form) -> tk.Kernel:
    """The kernel of x[b] @ y[b]."""
    left, right = _shapes(form)

    @tk.gen.kernel(B, M // BM, N // BN, blocks=form.blocks)
    def batched_matmul(
        x: tkl.InputBuffer[B, *left, T],
        y: tkl.InputBuffer[B, *right, T],
        z: tkl.OutputBuffer[B, M, N, T],
    ) -> None:
        batch, row, column = tkl.program_id(0), tkl.program_id(1) * BM, tkl.program_id(2) * BN
        product = _product(form, x, y, (batch,), row, column)
        tkl.store(z, (batch, row, column), product[None])

    return batched_matmul


def _shapes(form: Form) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    left, right = form.transposed
    return (K, M) if left else (M, K), (N, K) if right else (K, N)


def _product(form: Form, x: Any, y: Any, batch: tuple[Any, ...], row: Any, column: Any) -> Any:
    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), f32)])
    def steps(k: Any, total: Any) -> Any:
        rows = _load(x, batch, (row, k * BK), (BM, BK), form.transposed[0])
        columns = _load(y, batch, (k * BK, column), (BK, BN), form.transposed[1])
        return tkl.dot(rows, columns, total)

    return steps[0]


def _load(
    x: Any, batch: tuple[Any, ...], start: tuple[Any, Any], shape: tuple[Any, Any], is_turned: bool
) -> Any:
    none = (None,) * len(batch)
    if not is_turned:
        return tkl.load(x, (*batch, *start), (*none, *shape))
    return tkl.transpose(tkl.load(x, (*batch, *start[::-1]), (*none, *shape[::-1])))


# Rows and columns of a block, in the order of preference: the first that gives each of a GPU's
# processors a program, of which there are about so many.
_BLOCKS = ((128, 256), (128, 128), (64, 128), (64, 64), (32, 64), (16, 64))
_BLOCKS_OF_F32 = ((128, 64), (64, 64), (32, 64), (16, 64))
_PROCESSORS = 108
_DEPTH, _DEPTH_OF_F32 = 64, 32
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def choose_form(
    transposed: tuple[bool, bool], dtype: torch.dtype, batch: int, rows: int, columns: int
) -> Form:
    """The kernel for a size."""
    is_f32 = dtype == torch.float32
    blocks = _BLOCKS_OF_F32 if is_f32 else _BLOCKS
    fitting = [
        (height, width)
        for height, width in blocks
        if batch * -(-rows // height) * -(-columns // width) >= _PROCESSORS
    ]
    # No taller than the rows, unless nothing is as short.
    short = [one for one in fitting or blocks[-3:] if one[0] <= max(rows, blocks[-1][0])]
    return Form(transposed, *short[0], _DEPTH_OF_F32 if is_f32 else _DEPTH)


@dataclass(frozen=True)
class Matmul(MatmulNode):
    """A match: x @ y, with a bias or without, of matrices or of batches of them."""

    @property
    def is_supported(self) -> bool:
        """Whether the kernels support the operands."""
        return self.operands[0].meta["val"].dtype in _DTYPES and self.has_row

    def is_faster_on(self, target: Target) -> bool:
        """On every GPU."""
        return target.kind == "cuda"

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        node, (x, y) = self.node, self.operands
        shared = _broadcast_source(y) if node.target is aten.bmm.default else None
        if shared is not None and isinstance(x.meta["val"].shape[1], int):
            return self._call_flat(x, shared)
        if node.target is aten.bmm.default:
            return self._call(batched, factor_of(x), factor_of(y))
        bias = () if self.bias is None else (self.bias,)
        return self._call(plain, factor_of(x), factor_of(y), *bias)

    def _call_flat(self, x: fx.Node, y: fx.Node) -> fx.Node:
        """Multiply a batch by one matrix: all rows at once."""
        node, graph = self.node, self.node.graph
        _, rows, depth = x.meta["val"].shape
        x = emit(graph, aten.clone.default, x, memory_format=torch.contiguous_format, beside=node)
        flat = emit(graph, aten.view.default, x, [-1, depth], beside=node)
        result = self._call(plain, Factor(flat, is_transposed=False), factor_of(y))
        columns = result.meta["val"].shape[1]
        return emit(graph, aten.view.default, result, [-1, rows, columns], beside=node)

    def _call(self, kernel: Any, x: Factor, y: Factor, *bias: fx.Node) -> fx.Node:
        dtype = x.matrix.meta["val"].dtype
        *batch, rows, _ = map(hint, x.shape)
        form = choose_form(
            (x.is_transposed, y.is_transposed),
            dtype,
            batch[0] if batch else 1,
            rows,
            hint(y.shape[-1]),
        )
        op = kernel(form).op.op
        return emit(self.node.graph, op, x.matrix, y.matrix, *bias, beside=self.node)


def find(region: Region) -> Iterator[Matmul]:
    """Find matmuls that the kernels support."""
    for node in find_matmuls(region):
        if Matmul(node).is_supported:
            yield Matmul(node)


def _broadcast_source(node: fx.Node) -> fx.Node | None:
    """The matrix that a batch repeats, if it does."""
    node = skip_views(node)
    if node.target is not aten.expand.default:
        return None
    source = node.all_input_nodes[0]
    return source if source.meta["val"].ndim == node.meta["val"].ndim - 1 else None
