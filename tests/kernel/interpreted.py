"""Run a plain function as a kernel in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from turbine.algebra import Symbol
from turbine.kernel.backends import interpret
from turbine.kernel.program import program, signature, size_inference


def traced(
    function: Callable[..., Any], grid: Sequence[Any] = (), **args: Any
) -> program.KernelProgram:
    """A kernel's function as a graph."""
    parsed = signature.parse(function)
    return program.trace(parsed, signature.resolve_dtypes(parsed, args), grid, function)


def interpreted(
    function: Callable[..., Any],
    grid: Sequence[Any] = (),
    blocks: dict[str, int] | None = None,
    **args: Any,
) -> dict[str, Tensor]:
    """The outputs of a kernel's function, by name; in-out arguments are updated."""
    made = traced(function, grid, **args)
    known = {Symbol(name): size for name, size in (blocks or {}).items()}
    sizes = size_inference.bind_sizes(signature.parse(function), args, known)
    return interpret.run(made, sizes, args)
