"""Program ids and the size of the grid."""

from __future__ import annotations

from turbine import errors
from turbine.algebra import symbol
from turbine.kernel.trace import tracer
from turbine.kernel.trace.tracer import IndexExpr, user_line
from turbine.kernel.trace.types import axes_text


def program_id(axis: int) -> IndexExpr:
    """Index of this program along an axis of the grid.

    Returns:
        An integer expression, for indices, sizes and arithmetic.

    Example::

        @tk.gen.kernel(N // B, blocks={B: 2})
        def blocks(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[N, tkl.i64]):
            i = tkl.program_id(0)
            tkl.store(y, (i * B,), tkl.load(x, (i * B,), (B,)) * 0 + i)

        blocks(torch.zeros(5, dtype=torch.int64))  # tensor([0, 0, 1, 1, 2])
    """
    checked = _check_axis(axis, "program_id")
    return IndexExpr(symbol(f"program_id({checked})", "program", checked))


def num_programs(axis: int) -> IndexExpr:
    """Number of programs along an axis of the grid.

    Returns:
        An integer expression, for indices, sizes and arithmetic.

    Example::

        @tk.gen.kernel(3)
        def reverse(x: tkl.InputBuffer[3, tkl.f32], y: tkl.OutputBuffer[3, tkl.f32]):
            i = tkl.program_id(0)
            tkl.store(y, (tkl.num_programs(0) - 1 - i,), tkl.load(x, (i,)))

        reverse(torch.arange(3.0))  # tensor([2., 1., 0.])
    """
    checked = _check_axis(axis, "num_programs")
    return IndexExpr(tracer.current("tkl.num_programs").grid[checked])


def _check_axis(axis: int, what: str) -> int:
    grid = tracer.current(f"tkl.{what}").grid
    if isinstance(axis, int) and 0 <= axis < len(grid):
        return axis
    counts = ", ".join(map(str, grid))
    raise errors.KernelError(
        f"tkl.{what}({axis!r}) of the grid ({counts}), which has {axes_text(len(grid))}",
        where=user_line(),
        hint="axes are counted from 0" if grid else "give the decorator a grid, kernel(M // BM)",
    )
