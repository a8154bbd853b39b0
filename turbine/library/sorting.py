"""Sort rows and select their first elements, for decompositions of sort, top-k and medians."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

M, N, K = tkl.symbols("M N K")
T = tkl.types.T
In = tkl.InputBuffer[M, N, T]


def _sort(name: str, descending: bool) -> tk.Kernel:
    """A kernel that sorts each row, with indices; equal elements keep their order."""

    def sort(
        x: In, values: tkl.OutputBuffer[M, N, T], places: tkl.OutputBuffer[M, N, tkl.i64]
    ) -> None:
        row = tkl.program_id(0), 0
        value, place = sort_row(tkl.load(x, row, (1, N)), axis=1)
        tkl.store(values, row, value)
        tkl.store(places, row, place)

    sort_row = partial(tkl.sort_with_indices, descending=descending)
    sort.__name__ = name
    return tk.gen.kernel(M)(sort)


def _topk(name: str, largest: bool) -> tk.Kernel:
    """A kernel that gives the first K elements of each row in order, and their indices."""

    def topk(
        x: In, values: tkl.OutputBuffer[M, K, T], places: tkl.OutputBuffer[M, K, tkl.i64]
    ) -> None:
        row = tkl.program_id(0), 0
        value, place = tkl.topk(tkl.load(x, row, (1, N)), K, axis=1, largest=largest)
        tkl.store(values, row, value)
        tkl.store(places, row, place)

    topk.__name__ = name
    return tk.gen.kernel(M)(topk)


_ASCENDING, _DESCENDING = _sort("sort", False), _sort("sort_descending", True)
_LEAST, _LARGEST = _topk("topk_least", False), _topk("topk_largest", True)


def sort(rows: Tensor, descending: bool) -> Any:
    """The sorted rows of a matrix, and the index of each element before."""
    return (_DESCENDING if descending else _ASCENDING)(rows)


def topk(rows: Tensor, k: int, largest: bool) -> Any:
    """The first k elements of each row of a matrix in order, and their indices."""
    return (_LARGEST if largest else _LEAST).using(K=k)(rows)


KERNELS["sort"] = sort
KERNELS["topk"] = topk
