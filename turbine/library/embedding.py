"""Sums and means of the rows of bags, for decompositions of embedding bags."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

R, D, L, B, BD = tkl.symbols("R D L B BD")  # rows, columns, indices, bags, columns of a program
T = tkl.types.T
i64 = tkl.i64
Indices = tkl.InputBuffer[L, i64]


@cache
def _bag(is_mean: bool, is_weighted: bool, is_padded: bool) -> Any:
    """The kernel of sums or means, of rows with weights or without."""
    Weights = tkl.InputBuffer[L, T] if is_weighted else tkl.InputBuffer[1, T]

    def kernel(
        table: tkl.InputBuffer[R, D, T],
        indices: Indices,
        starts: tkl.InputBuffer[B, i64],
        ends: tkl.InputBuffer[B, i64],
        weights: Weights,
        padding: tkl.InputBuffer[1, i64],
        y: tkl.OutputBuffer[B, D, T],
    ) -> None:
        bag, column = tkl.program_id(0), tkl.program_id(1) * BD
        dtype = tkl.load(table, (0, column), (None, BD)).dtype
        wide = tkl.f64 if dtype == tkl.f64 else tkl.f32
        none = tkl.load(padding, (0,), (None,)) if is_padded else None
        init = [tkl.zeros((BD,), wide), tkl.full((), 0, wide)]

        @tkl.for_loop(tkl.load(starts, (bag,)), tkl.load(ends, (bag,)), init_args=init)
        def rows(i: Any, total: Any, count: Any) -> Any:
            index = tkl.load(indices, (i,), (None,))
            row = tkl.load(table, (index, column), (None, BD)).to(wide)
            if is_weighted:
                row = row * tkl.load(weights, (i,), (None,)).to(wide)
            one = tkl.full((), 1, wide)
            if none is not None:
                row, one = tkl.where(index == none, 0.0, row), tkl.where(index == none, 0.0, one)
            return total + row, count + one

        total, count = rows
        if is_mean:
            total = total / tkl.maximum(count, 1.0)
        tkl.store(y, (bag, column), total[None].to(dtype))

    words = ("mean" if is_mean else "sum", "weighted" * is_weighted, "padded" * is_padded)
    kernel.__name__ = "_".join(filter(None, ("embedding_bag", *words)))
    return tk.gen.kernel(B, D // BD, blocks={BD: 128})(kernel)


def pool(
    table: Tensor,
    indices: Tensor,
    starts: Tensor,
    ends: Tensor,
    weights: Tensor | None,
    padding: int | None,
    is_mean: bool,
) -> Tensor:
    """The sum or mean of the rows of each bag; an empty bag gives 0."""
    kernel = _bag(is_mean, weights is not None, padding is not None)
    weights = table.new_ones(1) if weights is None else weights
    none = torch.full([1], -1 if padding is None else padding, device=table.device)
    args = (indices.to(torch.int64), starts.to(torch.int64), ends.to(torch.int64))
    pooled: Tensor = kernel(table, *args, weights, none)
    return pooled


KERNELS["embedding_bag"] = pool
