"""The front door: a PyTorch model in, an ExportOutput that can be read, saved and compiled out."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from turbine import errors
from turbine.aot import provenance
from turbine.aot.output import ExportOutput
from turbine.capture.program import capture
from turbine.lower.importer import DEFAULT_NAME, lower_all


def export(
    model: torch.nn.Module | ExportedProgram,
    /,
    *example_args: Any,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    module_name: str | None = None,
    function_name: str | None = None,
    strict_export: bool = False,
    weights: str = "external",
) -> ExportOutput:
    """Export a model with example arguments.

    `dynamic_shapes` is what torch.export takes. `weights` says where parameters go: "external"
    (beside the code in the artifact, mapped at load), "global" (named values in the IR) or
    "inline" (constants the compiler may fold).

    >>> import torch, turbine
    >>> out = turbine.aot.export(torch.nn.Linear(4, 2), args=(torch.ones(3, 4),))
    >>> out.signature.text()
    '(input: float32[3, 4]) -> float32[3, 2]'
    """
    if example_args and args is not None:
        raise errors.ExportError("example arguments given twice", hint="use args=(...) alone")
    program = capture(
        model,
        args if args is not None else example_args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        strict=strict_export,
    )
    programs = {function_name or DEFAULT_NAME: program}
    name = module_name or "module"
    lowered = lower_all(programs, module_name=name, weights=weights)
    return ExportOutput(programs, lowered, name, provenance.of(model), weights)
