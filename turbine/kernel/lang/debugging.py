"""Look into a kernel that runs: print values, claim conditions, stop.

Lanes without a value are not looked at: see Note [Lanes without a value].
"""

from __future__ import annotations

import sys
from typing import Any

from turbine import config, errors
from turbine.kernel import tracer
from turbine.kernel.lang.arithmetic import as_bool
from turbine.kernel.op import as_tile, declare_internal
from turbine.kernel.tracer import Buffer, IndexExpr, Tile, user_line
from turbine.kernel.validity import ALWAYS


def print(*values: Any, label: str | None = None) -> None:
    """Show values whenever the kernel gets here, with the line and the program.

    Text is shown as it is; lanes that hold no value as a dot.

        tkl.print("x =", x)
    """
    tracer.current("tkl.print")
    parts = [v if isinstance(v, str) else as_tile(v, None, "print") for v in values]
    valids = [ALWAYS if isinstance(part, str) else part.valid for part in parts]
    print_op.record(
        parts, label, bounds=tuple(v.bounds for v in valids), masks=tuple(v.masks for v in valids)
    )


def assert_(condition: Any, message: str = "it does not hold") -> None:
    """Stop with an error where a condition does not hold in a lane that holds a value."""
    if not isinstance(message, str):
        raise errors.KernelError(
            f"tkl.assert_ has the message {message!r}",
            where=user_line(),
            hint="it is text that is known before the kernel runs; tkl.print shows values",
        )
    tracer.current("tkl.assert_")
    asked = as_bool(condition, "assert_")
    assert_op.record(asked, message, bounds=asked.valid.bounds, masks=asked.valid.masks)


# Whether kernels are run in the interpreter, when Turbine is imported.
DEBUG = config.is_interpreting()


def is_debug() -> bool:
    """Whether kernels are run in the interpreter now, as TURBINE_INTERPRET=1 says."""
    return config.is_interpreting()


def breakpoint() -> None:
    """Stop in the interpreter, as Python's breakpoint(); compiled code runs on.

    In the debugger, `values` holds the caller's variables by name as tensors and numbers, `nodes`
    everything the program has computed by the graph's names, and `program` is the program's id.
    """
    tracer.current("tkl.breakpoint")
    caller = sys._getframe(1).f_locals
    held = {name: v for name, v in caller.items() if isinstance(v, (Tile, Buffer, IndexExpr))}
    values = [v.expr if isinstance(v, IndexExpr) else v for v in held.values()]
    breakpoint_op.record(tuple(held), values)


@declare_internal
def print_op(values: Any, label: str | None) -> None:
    """Show text and tiles; bounds and masks are those of each."""


@declare_internal
def assert_op(condition: Any, message: str) -> None:
    """An error where a condition does not hold."""


@declare_internal
def breakpoint_op(names: Any, values: Any) -> None:
    """A stop in the interpreter; compiled code leaves it out."""
