"""`turbine compile`: the name of a model in, an artifact, .vmfb or MLIR file out."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from turbine import config, errors
from turbine import target as targets
from turbine.cli import sources
from turbine.cli.factory import importable_from
from turbine.cli.options import check_output
from turbine.progress import progress
from turbine.tables import bytes_text

if TYPE_CHECKING:
    from turbine.aot import ExportOutput


def compile_model(
    model: Annotated[str, "function that makes it, pkg.module:name; .pt2 or .onnx file; hf:FOLDER"],
    *,
    output: Annotated[Path, "file to write: .turbine, .vmfb, .mlir or .mlirbc", "-o"],
    input: Annotated[
        tuple[str, ...],
        "an input, if the function returns none: 8x3xf32, ids:batch[1..64]x128xi64",
        "-i",
    ] = (),
    target: Annotated[
        tuple[str, ...], "what to compile for: cpu, cpu:generic, cuda:sm_80 ...; or several CPUs"
    ] = (),
    strategy: Annotated[str | None, "auto, tune (time them all) or a strategy's name"] = None,
    quantize: Annotated[Literal["4", "8"] | None, "bits of the weights of matmuls"] = None,
    group_size: Annotated[int | None, "quantized weights that share a scale (32)"] = None,
    weights: Annotated[str | None, "where weights go: external, global or inline"] = None,
    archive: Annotated[Path | None, "write the weights to a separate .irpa file"] = None,
    describe: Annotated[
        bool, "keep source lines, IR and code for `turbine explain` and `turbine profile`"
    ] = False,
) -> int:
    """Compile a model ahead of time and print the paths of the files written.

    The function is called without arguments. It returns an object with model, args, kwargs and
    dynamic_shapes; a tuple (model, args[, kwargs]); a dict of turbine.aot.export's arguments
    with "model"; or an nn.Module, which needs --input. The current folder is searched first.
    A .pt2 file is what torch.export.save writes; an .onnx file needs the onnx package.
    hf:FOLDER, or hf:ARCHITECTURE@FOLDER, is a model of the transformers package: its
    config.json, and weights if there are .safetensors files.

    Inputs are random, or 0 where they are integers. A size that has a name may vary: "batch",
    or with a range "batch[1..64]", "batch[8..]". Sizes of one name are equal.

    example:
      turbine compile turbine.zoo:lenet -o lenet.turbine
    """
    sources.check(model)
    _check(output, target, strategy, weights, archive, describe)
    if group_size is not None and quantize is None:
        raise errors.ConfigError("--group-size without --quantize", hint="add --quantize 4 or 8")
    with progress(f"exporting {model}"):
        exported = export_source(model, input, weights)
        if quantize is not None:
            exported = _quantize(exported, int(quantize), group_size)
    if output.suffix in MLIR_SUFFIXES:
        written = _write_mlir(exported, output)
    else:
        wanted = target or (config.current().target,)
        with progress(f"compiling {exported.module_name} for {', '.join(wanted)}"):
            if output.suffix == ARTIFACT_SUFFIX:
                options = {"strategy": strategy, "archive": archive, "describe": describe}
                written = _write_artifact(exported, output, target=wanted, **options)
            else:
                written = exported.compile(target=wanted, strategy=strategy).save_vmfb(output)
    print(*written, sep="\n")
    return 0


ARTIFACT_SUFFIX = ".turbine"
MLIR_SUFFIXES = (".mlir", ".mlirbc")
SUFFIXES = (ARTIFACT_SUFFIX, ".vmfb", *MLIR_SUFFIXES)


def _check(
    output: Path,
    target: tuple[str, ...],
    strategy: str | None,
    weights: str | None,
    archive: Path | None,
    describe: bool,
) -> None:
    """Raise for invalid options before the model is exported."""
    from turbine.compiler import strategies

    check_output(output, SUFFIXES)
    settings = config.current()
    for text in target or (settings.target,):
        kind = targets.parse(text).kind
        strategies.choose(settings.strategy if strategy is None else strategy, kind)
    if len(target) > 1 and output.suffix != ARTIFACT_SUFFIX:
        raise errors.ConfigError(
            f"several targets with {output.suffix}", hint="only a .turbine file has code for each"
        )
    if output.suffix in MLIR_SUFFIXES and (target or strategy is not None):
        raise errors.ConfigError(
            f"--target or --strategy with {output.suffix}", hint="only the export is written there"
        )
    if describe and output.suffix != ARTIFACT_SUFFIX:
        raise errors.ConfigError(
            f"--describe with {output.suffix}", hint="`turbine profile` takes a .turbine file"
        )
    if archive is not None and output.suffix != ARTIFACT_SUFFIX:
        raise errors.ConfigError(
            f"--archive with {output.suffix}", hint="only a .turbine file names its archive"
        )
    if archive is not None and weights not in (None, "external"):
        raise errors.ConfigError(
            f"--archive with --weights {weights}", hint="an archive holds external weights"
        )


def export_source(source: str, inputs: tuple[str, ...], weights: str | None) -> ExportOutput:
    """Export what a text names; see `compile_model`."""
    # What the factory prints is talk; stdout is for the paths.
    with (
        contextlib.redirect_stdout(sys.stderr),
        importable_from(Path.cwd()),
    ):
        try:
            from turbine import aot
        except ImportError as error:
            raise errors.MissingExtra(
                f"compiling needs torch and IREE: {error}",
                hint="pip install torch iree-base-compiler",
            ) from error
        from turbine.lower.weights import check_place

        if weights is not None:
            check_place(weights)
        if source.endswith(sources.ONNX):
            return _export_onnx(source, inputs, weights)
        options = sources.export_arguments(source, inputs)
        if weights is not None:
            options["weights"] = weights
        model = options.pop("model")
        _note_training(model)
        exported = aot.export(model, **options)
        return replace(exported, provenance={**exported.provenance, "source": source})


def _export_onnx(source: str, inputs: tuple[str, ...], weights: str | None) -> ExportOutput:
    from turbine import aot

    if inputs:
        raise errors.ExportError(f"{source} has its own inputs", hint="leave out --input")
    if weights not in (None, "inline"):
        raise errors.ConfigError(
            f"--weights {weights} with {source}", hint="weights of ONNX models are in the code"
        )
    exported = aot.export_onnx(source)
    return replace(exported, provenance={**exported.provenance, "source": source})


def _quantize(exported: ExportOutput, bits: int, group_size: int | None) -> ExportOutput:
    from turbine import aot

    if group_size is None:
        quantized = aot.quantize(exported, bits=bits)
    else:
        quantized = aot.quantize(exported, bits=bits, group_size=group_size)
    report = quantized.quantization
    assert report is not None
    sizes = f"{bytes_text(report.bytes_before)} before, {bytes_text(report.bytes_after)} after"
    _note(f"{len(report.layers)} weights are packed in {bits} bits; {sizes}")
    return quantized


def _note_training(model: Any) -> None:
    import torch

    if isinstance(model, torch.nn.Module) and model.training:
        _note("the model is in training mode; call model.eval() in the factory for inference")


def _write_mlir(exported: ExportOutput, output: Path) -> list[Path]:
    exported.save_mlir(output)
    if exported.lowered.external:
        _note("the weights are not in this file; --weights global puts them there")
    return [output]


def _write_artifact(exported: ExportOutput, output: Path, **options: Any) -> list[Path]:
    artifact = exported.compile(output, **options)
    try:
        artifact.check_runs_here()
    except errors.ArtifactTargetError as error:
        _note(f"this machine cannot run it: {error.fact.splitlines()[0]}")
    archive = options["archive"]
    return [output] if archive is None else [output, archive]


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
