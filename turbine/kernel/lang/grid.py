"""Where a program stands among those of its launch."""

from __future__ import annotations

from turbine import errors
from turbine.kernel import tracing
from turbine.kernel.algebra import symbol
from turbine.kernel.tracing import IndexExpr, user_line


def program_id(axis: int) -> IndexExpr:
    """The number of this program along an axis of the grid."""
    trace = tracing.current("tkl.program_id")
    _check(axis, len(trace.grid))
    return IndexExpr(symbol(f"program_id({axis})", "program", axis))


def num_programs(axis: int) -> IndexExpr:
    """How many programs there are along an axis of the grid."""
    trace = tracing.current("tkl.num_programs")
    _check(axis, len(trace.grid))
    return IndexExpr(trace.grid[axis])


def _check(axis: int, rank: int) -> None:
    if not isinstance(axis, int) or not 0 <= axis < rank:
        raise errors.KernelError(
            f"there is no axis {axis!r} of a grid that has {rank}",
            where=user_line(),
            hint=f"the axes are 0 to {rank - 1}" if rank else "give the decorator a grid",
        )
