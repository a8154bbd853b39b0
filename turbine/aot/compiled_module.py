"""Procedural modules: a class of procedures, state and PyTorch functions in, one IR module out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from torch.export import ExportedProgram

from turbine import errors
from turbine.aot import import_phases, module_trace
from turbine.aot.globals import Global
from turbine.aot.import_phases import ImportPhase
from turbine.aot.jittable import Jittable
from turbine.aot.jittable import jittable as make_jittable
from turbine.aot.module_trace import Trace
from turbine.aot.procedures import Procedure, ProgramMember
from turbine.capture.program import Devices, Weight
from turbine.capture.quantization import Quantizer
from turbine.compiler import host
from turbine.lower import importer
from turbine.lower.emission import TargetQuery
from turbine.lower.importer import Lowered
from turbine.lower.weights import Number, WeightBuilder, check_place
from turbine.mlir import context as mlir_context
from turbine.mlir import function as mlir_function
from turbine.mlir.ir import Context, Location, Module, Operation
from turbine.passes.expand_custom_ops import ExpandCustomOps
from turbine.runtime.artifact import name_problem
from turbine.signature import Signature


@dataclass(frozen=True)
class ClassInfo:
    """The declarations of a compiled module's class, including inherited ones."""

    export_name: str
    procedures: Mapping[str, Procedure]
    globals: Mapping[str, Global]
    programs: Mapping[str, ProgramMember]
    jittables: Mapping[str, Jittable]
    options: ModuleBuilderOptions


@dataclass(frozen=True)
class InstanceInfo:
    """The IR built from a class, and the signatures of its entry points."""

    class_info: ClassInfo
    lowered: Lowered
    signatures: Mapping[str, Signature]
    load: float
    weights: str


@dataclass(frozen=True)
class ModuleBuilderOptions:
    """How the programs of a class are lowered, `class M(CompiledModule, options=...)`.

    With `import_symbolic_shape_expressions`, the IR of exported programs says how their dynamic
    sizes depend on each other.
    """

    import_symbolic_shape_expressions: bool = False


@dataclass(frozen=True, eq=False)
class ExportTargetDef:
    """A procedure or program of a class, and the devices it takes its arguments on.

    Other attributes are those of the target.
    """

    target: Callable[..., Any] | ExportedProgram
    argument_device_affinities: Devices | None = field(default=None, kw_only=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying asks for some of these before there is a target
            raise AttributeError(name)
        return getattr(self.target, name)


class CompiledModule:
    """A program written as a class; making an instance traces it.

    Functions of the class are procedures, which run once, on values that stand for those of a
    call; their parameters say by default values what they take. Those whose names begin with an
    underscore are plain Python, run where they are called.

    >>> from turbine import aot
    >>> class Counter(aot.CompiledModule):
    ...     count = aot.export_global(aot.AbstractIndex, mutable=True)
    ...     def step(self, by=aot.AbstractIndex):
    ...         self.count = self.count + by
    ...         return self.count
    >>> aot.CompiledModule.get_info(Counter()).signatures["step"].text()
    '(by: index) -> index'
    """

    _class_info: ClassInfo
    _instance_info: InstanceInfo

    def __init_subclass__(
        cls,
        *,
        export_name: str | None = None,
        options: ModuleBuilderOptions | None = None,
        **others: Any,
    ) -> None:
        super().__init_subclass__(**others)
        if options is not None and not isinstance(options, ModuleBuilderOptions):
            raise errors.ProcedureError(
                f"{cls.__name__} is given options={options!r}, which have no effect here",
                hint=f"leave them out; {cls.__name__}(import_to=..., weights=...) takes choices",
            )
        for name, value in list(vars(cls).items()):
            told = value if isinstance(value, ExportTargetDef) else ExportTargetDef(value)
            target, devices = told.target, told.argument_device_affinities
            if isinstance(target, FunctionType) and not name.startswith("_"):
                setattr(cls, name, Procedure(target, name, cls.__name__, devices))
            elif isinstance(target, ExportedProgram):
                setattr(cls, name, ProgramMember(target, name, cls.__name__, devices))
            elif isinstance(value, Global):
                value.declare(cls.__name__, name)
        cls._class_info = _class_info(cls, export_name or _snake(cls.__name__), options)

    def __init__(
        self,
        context: Context | None = None,
        *,
        import_to: ImportPhase | str | None = ImportPhase.IMPORT,
        weights: str = "external",
    ) -> None:
        built = build(self, check_place(weights), TargetQuery(host.default_target), context=context)
        import_phases.import_to(built.lowered.module, import_to)
        object.__setattr__(self, "_instance_info", built)

    def __setattr__(self, name: str, value: Any) -> None:
        known = self._class_info.globals
        if name not in known:
            raise errors.ProcedureError(
                errors.unknown("global", name, known),
                where=module_trace.line(),
                hint="declare it in the class with export_global(..., mutable=True)",
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        info = self._class_info
        known = (*info.globals, *info.procedures, *info.programs, *info.jittables)
        raise AttributeError(errors.unknown("global or procedure", name, known), obj=self)

    @staticmethod
    def create_from_dict(
        name: str,
        dct: Mapping[str, Any],
        *,
        export_name: str | None = None,
        options: ModuleBuilderOptions | None = None,
    ) -> type[CompiledModule]:
        """Make a class from its members, without a class statement."""
        return type(name, (CompiledModule,), dict(dct), export_name=export_name, options=options)

    @staticmethod
    def get_class_info(cls: type[CompiledModule]) -> ClassInfo:
        """The declarations of a class."""
        return cls._class_info

    @staticmethod
    def get_info(inst: CompiledModule) -> InstanceInfo:
        """The IR and signatures of an instance."""
        return inst._instance_info

    @staticmethod
    def get_module_builder(inst: CompiledModule) -> InstanceInfo:
        """The same as `get_info`: a module is built once, with its instance."""
        return inst._instance_info

    @staticmethod
    def get_mlir_module(inst: CompiledModule) -> Operation:
        """The IR of an instance, as the module's op."""
        return inst._instance_info.lowered.module.operation.opview

    @staticmethod
    def save_mlir(inst: CompiledModule, path: str | Path) -> None:
        """Write the IR as text, or as bytecode where the name ends in .mlirbc."""
        mlir_context.save(inst._instance_info.lowered.module, Path(path))

    @staticmethod
    def run_pass_pipeline(
        inst: CompiledModule, pipeline: str, enable_ir_printing: bool = False
    ) -> None:
        """Run a pipeline of MLIR's own passes, "builtin.module(canonicalize)", on the IR."""
        module = inst._instance_info.lowered.module
        mlir_context.run_pipeline(module, pipeline, print_ir=enable_ir_printing)

    @staticmethod
    def run_import(
        inst: CompiledModule, import_to: ImportPhase | str | None = ImportPhase.IMPORT
    ) -> None:
        """Lower the IR to a phase: "import" is IREE's input, "full" IREE's internal form."""
        import_phases.import_to(inst._instance_info.lowered.module, import_to)

    @staticmethod
    def expand_custom_ops(inst: CompiledModule) -> None:
        """Expand custom ops; only IR that was imported still has some."""
        ExpandCustomOps().run(inst._instance_info.lowered.module)

    @staticmethod
    def signature_info(
        *, arg_device: Devices | None = None
    ) -> Callable[[Callable[..., Any]], ExportTargetDef]:
        """A decorator that sets the devices of a procedure's arguments, by index after self."""
        return partial(ExportTargetDef, argument_device_affinities=arg_device)

    jittable = staticmethod(make_jittable)


def _class_info(
    cls: type[CompiledModule], export_name: str, options: ModuleBuilderOptions | None
) -> ClassInfo:
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, CompiledModule) and base is not CompiledModule:
            members.update(vars(base))
    return ClassInfo(
        export_name,
        {name: value for name, value in members.items() if isinstance(value, Procedure)},
        {name: value for name, value in members.items() if isinstance(value, Global)},
        {name: value for name, value in members.items() if isinstance(value, ProgramMember)},
        {name: value for name, value in members.items() if isinstance(value, Jittable)},
        options or ModuleBuilderOptions(),
    )


def _snake(name: str) -> str:
    """DecoderModule -> decoder."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return words.removesuffix("_module") or words


def build(
    instance: CompiledModule,
    place: str,
    target: TargetQuery,
    quantizer: Quantizer | None = None,
    context: Context | None = None,
) -> InstanceInfo:
    """Trace every procedure of an instance into a new module; a quantizer packs its weights."""
    info = instance._class_info
    module = Module.create(Location.unknown(context or mlir_context.new_context()))
    with module.context, Location.unknown():
        mlir_function.set_module_name(module, info.export_name)
        trace = Trace(
            WeightBuilder(module, place),
            target,
            quantizer,
            shape_expressions=info.options.import_symbolic_shape_expressions,
        )
        with module_trace.enter_trace(trace):
            _declare(trace, info)
            functions = [program.define(trace) for program in info.programs.values()]
            functions = [function for function in functions if not function.name.startswith("_")]
            functions += [p.define(trace, instance) for p in info.procedures.values()]
            _declare_fixed(trace, info)
        lowered = importer.finish(trace.weights, trace.target)
    mlir_context.verify(module)
    signatures = {function.name: function.signature for function in functions}
    return InstanceInfo(info, lowered, signatures, trace.load, place)


def _declare(trace: Trace, info: ClassInfo) -> None:
    """Define the state, and reserve the names of globals and entry points."""
    for declared in info.globals.values():
        for held in declared.held:
            trace.claim(held.name, f"the global {info.export_name}.{declared.attribute}")
            if isinstance(held, Number):
                trace.weights.declare_number(held, Location.unknown())
                continue
            trace.know(held)
            if held.mutable:
                trace.weights.declare(held, Location.unknown())
    for name in (*info.procedures, *info.programs):
        problem = None if name.startswith("_") else name_problem(name)
        if problem is not None:
            raise errors.ProcedureError(
                f"in {info.export_name}, {problem}", hint="give the procedure another name"
            )
    for procedure in info.procedures.values():
        trace.claim(procedure.name, f"the procedure {procedure.owner}.{procedure.name}")
    for program in info.programs.values():
        trace.claim(program.name, f"the program {program.owner}.{program.name}")


def _declare_fixed(trace: Trace, info: ClassInfo) -> None:
    """Define the globals that are never written, except those that are packed."""
    held = [value for declared in info.globals.values() for value in declared.held]
    weights = [weight for weight in held if isinstance(weight, Weight)]
    packed = trace.packed_names
    for weight in weights:
        if weight.name not in packed:
            trace.weights.declare(weight, Location.unknown())
    if trace.quantizer is not None:
        defined = trace.weights.defined.values()
        trace.quantizer.see(weight for weight in defined if isinstance(weight, Weight))
