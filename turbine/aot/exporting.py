"""The front door: a PyTorch model in, an ExportOutput that can be read, saved and compiled out."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from turbine import errors
from turbine.aot import provenance
from turbine.aot.fx_programs import FxPrograms, FxProgramsBuilder
from turbine.aot.output import ExportOutput
from turbine.capture.program import capture, share_weights
from turbine.lower.importer import DEFAULT_NAME, lower_all


def export(
    model: torch.nn.Module | ExportedProgram | FxPrograms,
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
    name = module_name or "module"
    if isinstance(model, FxPrograms):
        return _export_several(model, name, weights)
    program = capture(
        model,
        args if args is not None else example_args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        strict=strict_export,
    )
    programs = {function_name or DEFAULT_NAME: program}
    lowered = lower_all(programs, module_name=name, weights=weights)
    return ExportOutput(programs, lowered, name, provenance.of(model), weights)


def _export_several(model: FxPrograms, name: str, weights: str) -> ExportOutput:
    """Programs of one root module, with each of its tensors once."""
    if not model.programs:
        raise errors.ExportError("there is no program to export", hint="export_program adds one")
    programs = share_weights({entry: capture(p) for entry, p in model.programs.items()})
    lowered = lower_all(programs, module_name=name, weights=weights)
    root = model.root_module if isinstance(model, FxProgramsBuilder) else model
    return ExportOutput(programs, lowered, name, provenance.of(root), weights)
