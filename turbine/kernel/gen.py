"""Decorators that make kernels: `@tk.gen.kernel(M // BM, N // BN)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from turbine.kernel.kernel import Kernel


def kernel(
    *grid: Any, blocks: Mapping[Any, int] | None = None, specialize: Collection[Any] = ()
) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of the function below: it is run once for each program of the grid.

    In the grid, `M // BM` counts blocks, the last and partial one too. `blocks` gives sizes to
    symbols that no tensor tells, `{BM: 64}`; those left out are chosen. `specialize` names sizes
    that become part of the code.

    >>> import torch, turbine.kernel as tk, turbine.kernel.lang as tkl
    >>> N, B = tkl.sym.N, tkl.sym.B
    >>> @tk.gen.kernel(N // B)
    ... def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]):
    ...     start = tkl.program_id(0) * B
    ...     tkl.store(y, (start,), 2 * tkl.load(x, (start,), (B,)))
    >>> double(torch.ones(3))
    tensor([2., 2., 2.])
    """

    def make(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, grid, blocks, specialize)

    return make
