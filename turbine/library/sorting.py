"""Sort rows: a merge sort of each row, for decompositions of sort, top-k and medians."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

M, N = tkl.symbols("M N")
T = tkl.types.T


def _argsort(name: str, descending: bool) -> tk.Kernel:
    """A kernel that gives the indices that sort each row; equal elements keep their order."""

    def indices(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, tkl.i64]) -> None:
        row = tkl.program_id(0)
        tkl.store(y, (row, 0), sort(tkl.load(x, (row, 0), (1, N)), axis=1))

    sort = partial(tkl.argsort, descending=descending)
    indices.__name__ = name
    return tk.gen.kernel(M)(indices)


_ASCENDING = _argsort("argsort", False)
_DESCENDING = _argsort("argsort_descending", True)


def argsort(rows: Tensor, descending: bool) -> Any:
    """The indices that sort each row of a matrix."""
    return (_DESCENDING if descending else _ASCENDING)(rows)


KERNELS["argsort"] = argsort
