"""Where a program stands among those of its launch."""

from __future__ import annotations

from turbine import errors
from turbine.kernel import tracer
from turbine.kernel.algebra import symbol
from turbine.kernel.tracer import IndexExpr, user_line
from turbine.kernel.types import axes_text


def program_id(axis: int) -> IndexExpr:
    """The number of this program along an axis of the grid."""
    checked = _check_axis(axis, "program_id")
    return IndexExpr(symbol(f"program_id({checked})", "program", checked))


def num_programs(axis: int) -> IndexExpr:
    """How many programs there are along an axis of the grid."""
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
