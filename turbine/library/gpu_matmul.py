"""Matmuls on GPUs: blocks of the result, summed in f32 over blocks of K."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import dtypes
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.reshapes import reshape
from turbine.capture.sizes import hint
from turbine.library import epilogue
from turbine.library.epilogue import Epilogue, Formula
from turbine.library.fused import annotate
from turbine.library.nodes import (
    Factor,
    MatmulNode,
    factor_of,
    find_matmuls,
    has_one_dynamic_size,
    skip_views,
)
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
def plain(form: Form, *, has_bias: bool = False, formula: Formula | None = None) -> tk.Kernel:
    """The kernel of x @ y, with a bias or without, and of what is computed of the result."""
    left, right = _shapes(form)
    types = {"x": tkl.InputBuffer[*left, T], "y": tkl.InputBuffer[*right, T]}
    if has_bias:
        types["bias"] = tkl.InputBuffer[N, T]
    operands = zip(formula.rows, formula.operands, strict=True) if formula is not None else ()
    for place, (is_row, dtype) in enumerate(operands):
        shape = (N,) if is_row else (M, N)
        types[f"operand{place}"] = tkl.InputBuffer[*shape, dtypes.of_torch(dtype)]
    result = T if formula is None else dtypes.of_torch(formula.dtype)
    types["z"] = tkl.OutputBuffer[M, N, result]

    def matmul(**buffers: Any) -> None:
        x, y, *others, z = buffers.values()
        row, column = tkl.program_id(0) * BM, tkl.program_id(1) * BN
        product = _product(form, x, y, (), row, column)
        if has_bias:
            product = product + tkl.load(others.pop(0), (column,), (BN,))
        if formula is not None:
            tiles = [
                tkl.load(one, (column,), (BN,))
                if is_row
                else tkl.load(one, (row, column), (BM, BN))
                for one, is_row in zip(others, formula.rows, strict=True)
            ]
            product = formula.compute(product, tiles)
        tkl.store(z, (row, column), product)

    annotate(matmul, types)
    return tk.gen.kernel(M // BM, N // BN, blocks=form.blocks)(matmul)


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


# The relative time that programs take of which each processor runs one, by the rows and columns of
# a block, as measured on an H200.
_TIMES = {
    (128, 256): 34.0,
    (128, 128): 18.9,
    (64, 128): 10.9,
    (64, 64): 7.2,
    (32, 64): 5.3,
    (16, 64): 4.4,
}
_TIMES_OF_F32 = {(128, 64): 8.0, (64, 64): 4.2, (32, 64): 2.3, (16, 64): 1.4}
_PROCESSORS = 132
_DEPTH, _DEPTH_OF_F32 = 64, 32
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def choose_form(
    transposed: tuple[bool, bool], dtype: torch.dtype, batch: int, rows: int, columns: int
) -> Form:
    """The kernel for a size: that whose programs take the least time, all together."""
    is_f32 = dtype == torch.float32
    times = _TIMES_OF_F32 if is_f32 else _TIMES

    def time(block: tuple[int, int]) -> float:
        height, width = block
        programs = batch * -(-rows // height) * -(-columns // width)
        return -(-programs // _PROCESSORS) * times[block]

    # The smallest of several that are as fast.
    return Form(transposed, *min(reversed(times), key=time), _DEPTH_OF_F32 if is_f32 else _DEPTH)


@dataclass(frozen=True)
class Matmul:
    """A match: x @ y, with a bias or without, of matrices or of batches of them."""

    matmul: MatmulNode
    epilogue: Epilogue | None = None  # of a product of matrices

    @property
    def node(self) -> fx.Node:
        """The node whose value the kernel computes."""
        return self.matmul.node if self.epilogue is None else self.epilogue.node

    def is_faster_on(self, target: Target) -> bool:
        """On every GPU."""
        return target.kind == "cuda"

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        x, y = self.matmul.operands
        if not _is_of_rows(self.matmul):
            return self._call(batched, factor_of(x), factor_of(y))
        shared = _shared_matrix(self.matmul)
        if shared is not None:
            x, y = reshape(x, [-1, x.meta["val"].shape[2]], self.node), shared
        bias = () if self.matmul.bias is None else (self.matmul.bias,)
        kernel, operands = partial(plain, has_bias=bool(bias)), list(bias)
        if self.epilogue is not None:
            kernel = partial(kernel, formula=self.epilogue.formula)
            operands += self.epilogue.write_operands(y.meta["val"].shape[1])
        result = self._call(kernel, factor_of(x), factor_of(y), *operands)
        shape = [size if isinstance(size, int) else -1 for size in self.node.meta["val"].shape]
        return reshape(result, shape, self.node)

    def _call(self, kernel: Any, x: Factor, y: Factor, *others: fx.Node) -> fx.Node:
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
        return emit(self.node.graph, op, x.matrix, y.matrix, *others, beside=self.node)


def find(region: Region) -> Iterator[Matmul]:
    """Find matmuls that the kernels support."""
    claimed: set[fx.Node] = set()
    for node in find_matmuls(region):
        matmul = MatmulNode(node)
        if matmul.operands[0].meta["val"].dtype in _DTYPES and matmul.has_row:
            yield Matmul(matmul, epilogue.find(node, claimed) if _is_of_rows(matmul) else None)


def _is_of_rows(matmul: MatmulNode) -> bool:
    """Whether rows are multiplied by one matrix, maybe a batch of them."""
    if matmul.node.target is not aten.bmm.default:
        return True
    return _shared_matrix(matmul) is not None and has_one_dynamic_size(matmul.node)


def _shared_matrix(matmul: MatmulNode) -> fx.Node | None:
    """The matrix that all matrices of a batch are multiplied by, if there is one."""
    node = skip_views(matmul.operands[1])
    if matmul.node.target is not aten.bmm.default or node.target is not aten.expand.default:
        return None
    source = node.all_input_nodes[0]
    return source if source.meta["val"].ndim == node.meta["val"].ndim - 1 else None
