"""The result of an export: IR to read, save, verify, and compile to an artifact."""

from __future__ import annotations

import copy
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from turbine import config, dtypes, errors
from turbine import target as targets
from turbine.aot import import_phases, stages, transforms
from turbine.aot.compiled_module import CompiledModule, build
from turbine.capture import work
from turbine.capture.program import Program, Weight
from turbine.capture.quantization import Quantizer
from turbine.compiler import host, pipeline
from turbine.compiler.pipeline import Compiled
from turbine.dump import dump
from turbine.library import place_kernels
from turbine.lower.emission import TargetQuery
from turbine.lower.importer import Locate, Lowered, lower_all
from turbine.lower.weights import Number, address, raw_bytes
from turbine.mlir import context as mlir_context
from turbine.mlir import devices, elementwise, function, rewrites
from turbine.mlir.ir import Module, Operation
from turbine.packed_weights import QuantizationReport
from turbine.page.graph_stages import NodeNames
from turbine.page.stages import Stages, section_of
from turbine.passes import Pass
from turbine.progress import progress_on_terminal
from turbine.runtime import container, parameters, variants
from turbine.runtime.archive import open_archive
from turbine.runtime.artifact import Artifact
from turbine.runtime.entries import Declared, Entry
from turbine.runtime.state import Kept
from turbine.runtime.variants import Variant
from turbine.runtime.weights import WEIGHT_PREFIX, check_keys
from turbine.signature import Signature
from turbine.target import Target


@dataclass(frozen=True)
class Exported:
    """One entry point: its signature, and its captured program if it has one."""

    signature: Signature
    load: float = 0.0  # on one core, as capture/work.py measures it
    program: Program | None = None

    @staticmethod
    def of(program: Program) -> Exported:
        """The entry point of a captured program."""
        return Exported(program.signature, work.load(program.graph.graph), program)

    @property
    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Arguments to measure a call with."""
        return None if self.program is None else self.program.example


@dataclass(frozen=True)
class ExportOutput:
    """An exported program, before it is compiled, with its entry points by name."""

    entry_points: Mapping[str, Exported]
    lowered: Lowered
    module_name: str
    provenance: dict[str, Any]
    weights: str = "external"  # as passed to export
    module: CompiledModule | None = None  # whose procedures were traced, if it is one
    quantizer: Quantizer | None = None  # what packed the weights, if `quantize` was asked to
    quantization: QuantizationReport | None = None  # what it did
    passes: tuple[Pass, ...] = ()  # what `transform` ran
    shape_expressions: bool = False  # whether the IR has those of dynamic sizes
    training: dict[str, Any] = field(default_factory=dict)  # what the runtime has to know of steps
    # What each result of an entry point is, where `export_joint` says so.
    descriptors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def mlir_module(self) -> Operation:
        """The module's op, in the torch dialect."""
        return self.lowered.module.operation.opview

    @property
    def programs(self) -> dict[str, Program]:
        """The captured program of each entry point, if all have one."""
        captured = {name: entry.program for name, entry in self.entry_points.items()}
        traced = [name for name, program in captured.items() if program is None]
        if traced:
            raise errors.ExportError(
                f"{', '.join(traced)} of {self.module_name}: no program was captured in PyTorch",
                hint="export an nn.Module or an ExportedProgram for this",
            )
        return {name: program for name, program in captured.items() if program is not None}

    @property
    def program(self) -> Program:
        """The captured program, if there is one entry point."""
        self._check_single()
        (only,) = self.programs.values()
        return only

    @property
    def signature(self) -> Signature:
        """The signature, if there is one entry point."""
        self._check_single()
        (only,) = self.entry_points.values()
        return only.signature

    def _check_single(self) -> None:
        if len(self.entry_points) != 1:
            raise errors.ExportError(
                f"the export has {len(self.entry_points)} entry points",
                hint=f"ask for one of .entry_points by its name: {', '.join(self.entry_points)}",
            )

    def text(self, *, large_elements_limit: int = 50) -> str:
        """The IR as text; longer constants are elided."""
        return mlir_context.to_text(self.lowered.module, large_elements_limit=large_elements_limit)

    def print_readable(self, large_elements_limit: int = 50) -> None:
        """Print the IR."""
        sys.stdout.write(self.text(large_elements_limit=large_elements_limit))

    def verify(self) -> None:
        """Raise unless the IR is valid and the compiler knows every op in it."""
        mlir_context.verify(self.lowered.module)
        unknown = function.unknown_torch_ops(self.lowered.module)
        if unknown:
            names = sorted({name for name, _ in unknown})
            raise errors.UnsupportedOp(
                f"the compiler has no definition of {', '.join(names)}",
                where=unknown[0][1],
                hint="give them decompositions with turbine.aot.extend_aot_decompositions, "
                "or IR with turbine.passes.ExpandCustomOps",
            )

    def transform(self, *passes: Pass) -> ExportOutput:
        """The export after some passes of `turbine.passes`; its weights follow, this one stays.

        >>> import torch, turbine
        >>> from turbine.passes import RenameParameters
        >>> out = turbine.aot.export(torch.nn.Linear(4, 2), args=(torch.ones(3, 4),))
        >>> renamed = out.transform(RenameParameters({"weight": "w", "bias": "b"}))
        >>> '#flow.parameter.named<"model"::"w">' in renamed.text()
        True
        """
        lowered = transforms.transform(self.lowered, passes)
        return replace(self, lowered=lowered, passes=(*self.passes, *passes))

    def import_to(self, phase: str | None) -> None:
        """Lower the IR in place to a phase: "import" is IREE's input, "full" its internal form."""
        import_phases.import_to(self.lowered.module, phase)

    def save_mlir(self, path: str | Path) -> None:
        """Write the IR as text, or as bytecode where the name ends in .mlirbc."""
        container.check_suffix(Path(path), ".mlir", ".mlirbc")
        mlir_context.save(self.lowered.module, Path(path))

    def compile(
        self,
        save_to: str | Path | None = None,
        *,
        target: str | Sequence[str] | None = None,
        target_backends: str | Sequence[str] | None = None,
        strategy: str | None = None,
        archive: str | Path | None = None,
        timeout: float | None = None,
        in_process: bool | None = None,
        cache: bool | None = None,
        describe: bool = False,
    ) -> Artifact:
        """Compile to a callable artifact, and save it to `save_to` if given.

        An artifact for a machine unlike this one is written, and refuses to be called here.

        Args:
            save_to: the file to write; a name that ends in .vmfb is IREE's own format, with the
                weights beside it as .irpa.
            target: the machine, as `turbine.target` has it, such as "cpu" or "cpu:generic"; or a
                list of CPUs, ["cpu:generic", "cpu:x86-64-v3"]. Of several, the artifact has code
                for each, and runs the one with the most features that the CPU has.
            target_backends: the same as IREE's compiler has it, "llvm-cpu".
            strategy: the flags to compile with; "tune" times several and keeps the fastest.
            archive: an .irpa file to write the weights to, which the artifact then names; or a
                .safetensors or .gguf file that has them already.
            timeout: seconds the compiler may take.
            in_process: compile in this process, not in one of the compiler's own.
            cache: keep compiled code on disk, and look for it there first.
            describe: keep which lines of the model each dispatch computes and how much work that
                is, for `turbine profile`, and the IR and code of all stages, for `turbine explain`;
                takes more than twice as long.
        """
        if not self.entry_points:
            raise errors.ExportError(
                f"{self.module_name} has no entry points",
                hint="write a procedure, a function whose name begins with no underscore",
            )
        _check_places(save_to, archive)
        wanted = _targets(target, target_backends)
        if len(wanted) > 1 and save_to is not None and Path(save_to).suffix == VMFB_SUFFIX:
            raise errors.ConfigError(
                f"{len(wanted)} targets in {save_to}: a {VMFB_SUFFIX} file has code for one",
                hint="save a .turbine file, or compile for one target at a time",
            )
        if archive is not None:
            declared = self._declare_weights(archived=False)
            check_keys(declared, str(archive))
            if not _is_written(archive):
                open_archive(Path(archive)).check(declared)
        compiling = partial(
            self._compile_for,
            strategy=strategy,
            timeout=timeout,
            in_process=in_process,
            cache=cache,
            describe=describe,
        )
        codes = []
        for one in wanted:
            with progress_on_terminal(f"turbine is compiling {self._name} for {one.text}"):
                codes.append(compiling(one))
        return _deliver(codes, save_to, archive)

    def _compile_for(
        self,
        wanted: Target,
        *,
        strategy: str | None,
        timeout: float | None,
        in_process: bool | None,
        cache: bool | None,
        describe: bool,
    ) -> _Code:
        resolved = partial(host.resolve, wanted, in_process=in_process)
        query = TargetQuery(resolved)
        ready = self.lowered_for(query)
        chosen = replace(wanted, devices=devices.count(ready.lowered.module))
        ready.verify()
        prepare = partial(_prepare, count=chosen.devices)
        module = prepare(ready.lowered.module)
        source = mlir_context.to_bytecode(module)
        captured = {
            f"{name}.py": entry.program.text
            for name, entry in self.entry_points.items()
            if entry.program is not None
        }
        dump(self.module_name, {**captured, "lowered.mlir": ready.text})
        compiled = pipeline.compile_ir(
            source,
            chosen,
            strategy=strategy,
            fingerprint=mlir_context.fingerprint(module),
            timeout=timeout,
            in_process=in_process,
            use_cache=cache,
            measure=ready._measure if self._has_examples else None,
            name=self._name,
        )
        if not describe:
            return _Code(ready, compiled)
        described = stages.describe(
            *self._by_nodes(query, ready),
            prepare,
            chosen,
            compiled.strategy,
            in_process=in_process,
        )
        return _Code(ready, compiled, described.dispatches, described.stages)

    def _by_nodes(
        self, target: TargetQuery, ready: ExportOutput
    ) -> tuple[stages.Source, NodeNames]:
        """The module with nodes of its graphs as locations; as it is if there are no graphs."""
        as_it_is = stages.Source(ready.lowered.module, {}), NodeNames.of({})
        if self.module is not None or any(e.program is None for e in self.entry_points.values()):
            return as_it_is
        programs = self._with_kernels(target) or self.programs
        graphs = {name: program.graph for name, program in programs.items()}
        names = NodeNames.of(graphs)
        lowered = self.lowered_anew(target, programs, names.locate)
        if mlir_context.fingerprint(lowered.module) != mlir_context.fingerprint(
            ready.lowered.module
        ):
            return as_it_is
        return stages.Source(lowered.module, graphs), names

    def lowered_for(self, target: TargetQuery) -> ExportOutput:
        """The export with kernels and products of quantized weights emitted for a target."""
        placed = self._with_kernels(target)
        emitted = self.lowered.target
        is_ready = emitted is None or emitted.code_facts == target.target.code_facts
        if placed is None and is_ready:
            return self
        return replace(self, lowered=self.lowered_anew(target, placed))

    def _with_kernels(self, target: TargetQuery) -> dict[str, Program] | None:
        """The programs with kernels of the library, if these are faster; passes look for ops."""
        has_programs = all(entry.program is not None for entry in self.entry_points.values())
        if self.module is not None or self.passes or not has_programs:
            return None
        return place_kernels(self.programs, lambda: target.target)

    def lowered_anew(
        self,
        target: TargetQuery,
        programs: Mapping[str, Program] | None = None,
        locate: Locate | None = None,
    ) -> Lowered:
        """The programs or procedures lowered again, with the export's quantizer and passes."""
        if self.module is not None:
            lowered = build(self.module, self.weights, target, self.quantizer).lowered
        else:
            lowered = lower_all(
                programs or self.programs,
                target,
                module_name=self.module_name,
                weights=self.weights,
                locate=locate,
                shape_expressions=self.shape_expressions,
            )
        return transforms.transform(lowered, self.passes) if self.passes else lowered

    def manifest(self, code: Sequence[Variant], archive: str | None = None) -> dict[str, Any]:
        """The manifest of an artifact with this code; `archive` is where its weights are."""
        declared = self._declare_weights(archived=archive is not None and _is_written(archive))
        scopes = [] if archive is None else [weight.scope for weight in declared]
        return {
            "name": self.module_name,
            **variants.to_json([*code]),
            "functions": {name: e.signature.to_json() for name, e in self.entry_points.items()},
            "load": max(entry.load for entry in self.entry_points.values()),
            "archives": dict.fromkeys(scopes, archive),
            "weights": [asdict(weight) for weight in declared],
            "state": [asdict(_to_constant(weight)) for weight in self.lowered.state],
            "training": self.training,
            "provenance": self.provenance,
        }

    def weight_sections(self, *, archived: bool = False) -> list[tuple[str, Any]]:
        """The sections of the weights that are not in the code.

        Beside an archive, these are what state dicts lack: another archive may have no value.
        """
        kept = [w for w in self.lowered.external if not (archived and w.persistent)]
        return [(WEIGHT_PREFIX + w.name, raw_bytes(w.tensor)) for w in kept]

    def _declare_weights(self, *, archived: bool) -> list[Declared]:
        return [_declaration(weight, archived) for weight in self.lowered.external]

    @property
    def _name(self) -> str:
        """The name that the user gave, or else that of the model's class."""
        model = str(self.provenance.get("model", "")).rpartition(".")[2]
        return model if model and self.module_name == DEFAULT_MODULE else self.module_name

    @property
    def _has_examples(self) -> bool:
        return all(entry.example is not None for entry in self.entry_points.values())

    def _measure(self, compiled: Compiled) -> float:
        """Seconds of one call of each function on its example arguments."""
        artifact = _deliver([_Code(self, compiled)], None, None)
        seconds = 0.0
        for name, entry in self.entry_points.items():
            args, kwargs = copy.deepcopy(entry.example or ((), {}))
            call = artifact.functions[name].call
            seconds += pipeline.seconds_of(partial(call, args, kwargs))
        return seconds


VMFB_SUFFIX = ".vmfb"
DEFAULT_MODULE = "module"  # what IREE's tools call a program without a name


def module_name_of(text: str) -> str:
    """A text as the name of a module of IREE."""
    return "".join(c if c.isalnum() else "_" for c in text)


@dataclass(frozen=True)
class _Code:
    """An export as it was lowered for a target, and its code."""

    ready: ExportOutput
    compiled: Compiled
    dispatches: list[dict[str, Any]] = field(default_factory=list)
    stages: Stages | None = None

    def sections(self, code: str) -> list[tuple[str, bytes]]:
        """The sections of an artifact, of which that of the code has this name."""
        described = [] if self.stages is None else [(section_of(code), self.stages.to_bytes())]
        return [(code, self.compiled.data), *described]


def _prepare(module: Module, count: int) -> Module:
    """A copy as the compiler takes it."""
    copied = rewrites.clone(devices.with_known_devices(module, count))
    elementwise.use_formulas(copied)
    return copied


def _deliver(
    codes: Sequence[_Code], save_to: str | Path | None, archive: str | Path | None
) -> Artifact:
    """The artifact with the code for each target; the weights are the same for all."""
    ready = _with_weights_of(codes)
    rows = [
        Variant(c.compiled.target, c.compiled.strategy, c.dispatches, variants.code_section(index))
        for index, c in enumerate(codes)
    ]
    sections = [one for row, c in zip(rows, codes, strict=True) for one in c.sections(row.code)]
    if save_to is None or Path(save_to).suffix == VMFB_SUFFIX:
        every = [*sections, *ready.weight_sections()]
        artifact = Artifact(container.anonymous(ready.manifest(rows), every))
        if save_to is not None:
            artifact.save_vmfb(save_to)
        return artifact
    path = Path(save_to)
    if archive is None:
        container.save(path, ready.manifest(rows), [*sections, *ready.weight_sections()])
        return Artifact(container.open_file(path))
    if _is_written(archive):
        parameters.save_archive(Path(archive), [_entry(w) for w in ready.lowered.external])
    named = os.path.relpath(archive, path.parent)
    every = [*sections, *ready.weight_sections(archived=True)]
    container.save(path, ready.manifest(rows, named), every)
    return Artifact(container.open_file(path))


def _with_weights_of(codes: Sequence[_Code]) -> ExportOutput:
    """The export as lowered for the first target, with the weights that any of the targets uses."""
    first = codes[0].ready
    every = {weight.name: weight for code in codes for weight in code.ready.lowered.external}
    states = {tuple(value.name for value in code.ready.lowered.state) for code in codes}
    assert len(states) == 1, f"state differs between targets: {states}"
    return replace(first, lowered=replace(first.lowered, external=tuple(every.values())))


# IREE's names of targets, and ours.
_BACKENDS = {"llvm-cpu": "cpu", "cuda": "cuda", "rocm": "hip", "vulkan-spirv": "vulkan"}


def _targets(
    target: str | Sequence[str] | None, backends: str | Sequence[str] | None
) -> list[Target]:
    """The targets that the arguments of `compile` name, each once."""
    if backends is None:
        texts = config.current().target if target is None else target
        several = [texts] if isinstance(texts, str) or not isinstance(texts, Sequence) else texts
        found = [targets.parse(text) for text in several]
        return _check_several(list(dict.fromkeys(found)))
    names = [backends] if isinstance(backends, str) else list(backends)
    if target is not None or len(names) != 1:
        raise errors.ConfigError(
            f"one target backend at a time, not {target=} target_backends={names}",
            hint='compile once for each, or for several CPUs: target=["cpu:generic", "cpu"]',
        )
    if names[0] not in _BACKENDS:
        raise errors.ConfigError(errors.unknown("target backend", names[0], _BACKENDS))
    return [targets.parse(_BACKENDS[names[0]])]


def _check_several(found: list[Target]) -> list[Target]:
    kinds = {target.kind for target in found}
    if not found or (len(found) > 1 and kinds != {"cpu"}):
        raise errors.UnknownTarget(
            f"cannot compile for {[target.text for target in found]} in one artifact",
            hint="a list of targets has CPUs alone, and one at least; compile once for each GPU",
        )
    return found


def _is_written(archive: str | Path) -> bool:
    return Path(archive).suffix == parameters.WRITTEN_SUFFIX


def _check_places(save_to: str | Path | None, archive: str | Path | None) -> None:
    """Raise for an invalid path before minutes are spent in the compiler."""
    if archive is not None and (save_to is None or Path(save_to).suffix == VMFB_SUFFIX):
        raise errors.ConfigError(
            "archive= needs save_to= an artifact file that names it",
            hint='add save_to="model.turbine", or leave archive= out',
        )
    if save_to is not None:
        container.check_suffix(Path(save_to), ".turbine", VMFB_SUFFIX)
    for path in (save_to, archive):
        if path is not None:
            container.check_folder(Path(path))


def _declaration(weight: Weight, archived: bool) -> Declared:
    scope, key = address(weight)
    return Declared(
        name=weight.name,
        scope=scope,
        key=key,
        dtype=dtypes.of_torch(weight.tensor.dtype).name,
        shape=tuple(weight.tensor.shape),
        length=weight.tensor.nbytes,
        persistent=weight.persistent,
        # In the artifact's own file, the section has it.
        crc32=zlib.crc32(raw_bytes(weight.tensor).data) if archived else None,
    )


def _to_constant(value: Weight | Number) -> Kept:
    if isinstance(value, Number):
        return Kept(value.name, value.dtype, None)
    dtype = dtypes.of_torch(value.tensor.dtype).name
    sizes = enumerate(value.shape)
    return Kept(value.name, dtype, tuple(f"size{k}" if n is None else n for k, n in sizes))


def _entry(weight: Weight) -> Entry:
    declared = _declaration(weight, archived=False)
    data = raw_bytes(weight.tensor).data
    return Entry(declared.key, data, declared.dtype, declared.shape)
