"""Print, assert and breakpoints in kernels; masked-off lanes are ignored."""

from __future__ import annotations

import sys
from typing import Any

from turbine import config, errors
from turbine.kernel.lang.arithmetic import as_bool
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import declare_internal
from turbine.kernel.trace.tracer import Buffer, IndexExpr, Tile, user_line
from turbine.kernel.trace.validity import ALWAYS


def print(*values: Any, label: str | None = None) -> None:
    """Print text and values each time a program gets here, with the line and the program's index.

    Masked-off elements are shown as a dot. Compiled code prints when the call is over; exported
    programs do not print.

    Args:
        values: Text, printed as it is, and tiles and numbers.
        label: Text before the values.

    Example::

        tkl.print("x =", tkl.arange(3))  # x = [0 1 2]
    """
    tracer.current("tkl.print")
    parts = [v if isinstance(v, str) else as_tile(v, None, "print") for v in values]
    valids = [ALWAYS if isinstance(part, str) else part.valid for part in parts]
    print_op.record(
        parts, label, bounds=tuple(v.bounds for v in valids), masks=tuple(v.masks for v in valids)
    )


def assert_(condition: Any, message: str = "it does not hold") -> None:
    """Raise KernelError if an element of the condition is False.

    The error names the message, the line, the program and, in the interpreter, the element.
    Masked-off elements are not checked.

    Example::

        tkl.assert_(tkl.arange(4) < 4, "an index is too large")
    """
    if not isinstance(message, str):
        raise errors.KernelError(
            f"tkl.assert_ has an invalid message: {message!r}",
            where=user_line(),
            hint="the message is a str; tkl.print prints values",
        )
    tracer.current("tkl.assert_")
    tile = as_bool(condition, "assert_")
    assert_op.record(tile, message, bounds=tile.valid.bounds, masks=tile.valid.masks)


# Whether kernels ran in the interpreter when Turbine was imported.
DEBUG = config.get("interpret")


def is_debug() -> bool:
    """Whether kernels run in the interpreter, as `TURBINE_INTERPRET=1` sets it.

    Example::

        if tkl.is_debug():
            tkl.print(tkl.arange(3))
    """
    return bool(config.get("interpret"))


def breakpoint() -> None:
    """Stop in the interpreter, as Python's `breakpoint()`; compiled code leaves it out.

    In the debugger, `values` holds the kernel's variables as tensors and numbers, such as
    `values["x"]`, `nodes` every value that the program has computed by its name in the graph, and
    `program` the program's index. A symbol that the kernel does not use stays a symbol.

    Example::

        x = tkl.arange(4)
        tkl.breakpoint()
    """
    tracer.current("tkl.breakpoint")
    caller = sys._getframe(1).f_locals
    variables = {name: v for name, v in caller.items() if isinstance(v, (Tile, Buffer, IndexExpr))}
    values = [v.expr if isinstance(v, IndexExpr) else v for v in variables.values()]
    breakpoint_op.record(tuple(variables), values)


@declare_internal
def print_op(values: Any, label: str | None) -> None:
    """Print text and tiles; each tile has bounds and masks."""


@declare_internal
def assert_op(condition: Any, message: str) -> None:
    """Raise an error if a condition is False."""


@declare_internal
def breakpoint_op(names: Any, values: Any) -> None:
    """Enter the debugger in the interpreter; ignored in compiled code."""
