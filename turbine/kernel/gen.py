"""Decorators that make kernels: `@tk.gen.kernel(M // BM, N // BN)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from turbine import errors, redirects
from turbine.kernel.call.choices import Tune
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.trace.tracer import IndexExpr, user_line

if TYPE_CHECKING:
    from turbine.compat.kernel_threads import Thread as Thread
    from turbine.compat.kernel_threads import thread as thread
    from turbine.compat.kernel_tracing import TestLaunchContext as TestLaunchContext
else:
    __getattr__, __dir__ = redirects.old_names(__name__)


def kernel(
    *grid: Any,
    blocks: Mapping[Any, int] | None = None,
    specialize: Collection[Any] = (),
    tune: Tune | None = None,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of the function below: it is run once for each program of the grid.

    In the grid, `M // BM` counts blocks, the last and partial one too. `blocks` gives sizes to
    tunable block sizes, `{BM: 64}`; those left out are chosen. `specialize` names sizes
    that become part of the code. `tune` lists the configurations that `kernel.tune` tries,
    `[{BM: 64, "num_warps": 4}, ...]`, or is the path of a table that it wrote, relative to the
    file of the kernel. No call searches by itself.

    >>> import torch, turbine.kernel as tk, turbine.kernel.lang as tkl
    >>> N, B = tkl.sym.N, tkl.sym.B
    >>> @tk.gen.kernel(N // B)
    ... def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]):
    ...     start = tkl.program_id(0) * B
    ...     tkl.store(y, (start,), 2 * tkl.load(x, (start,), (B,)))
    >>> double(torch.ones(3))
    tensor([2., 2., 2.])
    """

    check_grid(grid)

    def make(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, grid, blocks, specialize, tune)

    return make


def check_grid(grid: tuple[Any, ...]) -> None:
    """Complain about counts of programs that are none."""
    for axis, count in enumerate(grid):
        if isinstance(count, IndexExpr) or (type(count) is int and count >= 0):
            continue
        what = "a function" if callable(count) else repr(count)
        raise errors.KernelError(
            f"the grid has {what} for its axis {axis}",
            where=user_line(),
            hint="a count of programs is a number or an expression of sizes; the decorator is "
            "called with them: @tk.gen.kernel(M // BM, 4)",
        )
