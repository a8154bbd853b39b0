"""The front door: a PyTorch model in, an ExportOutput that can be read, saved and compiled out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from turbine import errors
from turbine.aot import provenance
from turbine.aot.compiled_module import CompiledModule, ExportTargetDef
from turbine.aot.fx_programs import FxPrograms, FxProgramsBuilder, is_private, target_of
from turbine.aot.output import DEFAULT_MODULE, Exported, ExportOutput
from turbine.capture.model import capture
from turbine.capture.program import Devices, Program
from turbine.capture.weights import share_weights
from turbine.compiler import host
from turbine.library.random import STREAM
from turbine.lower.emission import TargetQuery
from turbine.lower.importer import DEFAULT_NAME, lower_all
from turbine.progress import progress_on_terminal


def export(
    model: torch.nn.Module
    | ExportedProgram
    | ExportTargetDef
    | FxPrograms
    | CompiledModule
    | type[CompiledModule],
    /,
    *example_args: Any,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    module_name: str | None = None,
    function_name: str | None = None,
    strict_export: bool = False,
    import_symbolic_shape_expressions: bool = False,
    weights: str = "external",
    arg_device: Devices | None = None,
    seed: int = 0,
) -> ExportOutput:
    """Export a model with example arguments, or a compiled module without.

    Args:
        model: a module, a program of torch.export's, several programs, or a compiled module.
        example_args: the arguments of an example call; or give them as `args`.
        args: the same, as a tuple.
        kwargs: the example's arguments by name.
        dynamic_shapes: which sizes may vary, as torch.export takes it.
        module_name: what IREE's tools call the module; "module" unless given.
        function_name: what they call its function; "main" unless given.
        strict_export: trace with Dynamo, as `torch.export.export(strict=True)` does.
        import_symbolic_shape_expressions: say in the IR how dynamic sizes depend on each other, in
            torch.bind_symbolic_shape ops; the signature says so either way. A compiled module
            takes this as an option of its class.
        weights: where parameters go: "external" (beside the code in the artifact, mapped at
            load), "global" (named values in the IR) or "inline" (constants, which may fold).
        arg_device: on which devices arguments are taken, by their places.
        seed: of the random numbers that the model draws. They depend on it and on how many were
            drawn before, which is state of the artifact.

    >>> import torch, turbine
    >>> out = turbine.aot.export(torch.nn.Linear(4, 2), args=(torch.ones(3, 4),))
    >>> out.signature.text()
    '(input: float32[3, 4]) -> float32[3, 2]'
    """
    shape_expressions = import_symbolic_shape_expressions
    if isinstance(model, CompiledModule):
        return _export_module(model)
    if isinstance(model, type):
        return _export_module(_instance(model, weights))
    if example_args and args is not None:
        raise errors.ExportError("example arguments given twice", hint="use args=(...) alone")
    name = module_name or DEFAULT_MODULE
    if isinstance(model, FxPrograms):
        return _export_several(model, name, weights, shape_expressions, seed)
    if isinstance(model, ExportTargetDef):
        arg_device = arg_device or model.argument_device_affinities
        model = target_of(model)
    with progress_on_terminal(f"turbine is exporting {type(model).__name__}"):
        program = capture(
            model,
            args if args is not None else example_args,
            kwargs,
            dynamic_shapes=dynamic_shapes,
            strict=strict_export,
            arg_device=arg_device,
            stream=STREAM,
            seed=seed,
        )
    programs = {function_name or DEFAULT_NAME: program}
    return output_of(programs, name, model, weights, shape_expressions)


def _export_several(
    model: FxPrograms, name: str, weights: str, shape_expressions: bool, seed: int
) -> ExportOutput:
    """Programs of one root module, with its tensors shared."""
    public = {name: target for name, target in model.programs.items() if not is_private(name)}
    if not public:
        raise errors.ExportError("there is no program to export", hint="export_program adds one")
    captured = {
        entry: capture(target_of(target), arg_device=_devices(target), stream=STREAM, seed=seed)
        for entry, target in public.items()
    }
    programs = share_weights(captured)
    root = model.root_module if isinstance(model, FxProgramsBuilder) else model
    return output_of(programs, name, root, weights, shape_expressions)


def _devices(target: ExportTargetDef | ExportedProgram) -> Devices | None:
    return target.argument_device_affinities if isinstance(target, ExportTargetDef) else None


def output_of(
    programs: Mapping[str, Program],
    name: str,
    source: object,
    weights: str = "external",
    shape_expressions: bool = False,
) -> ExportOutput:
    """The export of captured programs, which share weights."""
    lowered = lower_all(
        programs,
        TargetQuery(host.default_target),
        module_name=name,
        weights=weights,
        shape_expressions=shape_expressions,
    )
    entry_points = {entry: Exported.of(program) for entry, program in programs.items()}
    return ExportOutput(
        entry_points,
        lowered,
        name,
        provenance.of(source),
        weights,
        shape_expressions=shape_expressions,
    )


def _instance(model: type, weights: str) -> CompiledModule:
    if not issubclass(model, CompiledModule):
        raise errors.ExportError(
            f"cannot export the class {model.__name__}",
            hint="pass an nn.Module, an ExportedProgram or a subclass of CompiledModule",
        )
    return model(weights=weights)


def _export_module(instance: CompiledModule) -> ExportOutput:
    """The export of an instance."""
    info = CompiledModule.get_info(instance)
    return ExportOutput(
        {name: Exported(signature, info.load) for name, signature in info.signatures.items()},
        info.lowered,
        info.class_info.export_name,
        provenance.of(instance),
        info.weights,
        module=instance,
    )
