"""Models on the command line: a text that names one in, arguments of `turbine.aot.export` out."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turbine import errors
from turbine.cli import example_inputs, factory, pretrained
from turbine.cli.example_inputs import ExampleInput

SAVED = ".pt2"
ONNX = ".onnx"


def check(source: str) -> None:
    """Raise for a text that cannot name a model."""
    if source.startswith(pretrained.PREFIX):
        pretrained.check(source)
    elif source.endswith((SAVED, ONNX)):
        _check_file(Path(source))
    else:
        factory.split(source)


def export_arguments(source: str, inputs: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments of an export, "model" among them; inputs are for a bare nn.Module."""
    parsed = example_inputs.parse(inputs)
    if source.endswith(SAVED):
        return _saved_program(Path(source), parsed)
    found = _load_source(source)
    if "args" not in found and "kwargs" not in found and factory.is_module(found["model"]):
        return {**example_inputs.call_arguments(found["model"], parsed), **found}
    if inputs:
        raise errors.ExportError(
            f"{source} returns its own inputs", hint="leave out --input, or return the model alone"
        )
    return found


def load_model(source: str) -> Any:
    """The model itself, to be called in PyTorch."""
    if source.endswith(ONNX):
        raise errors.ConfigError(
            f"{source} is not a PyTorch model",
            hint="add --model with the model that it came from; onnxruntime alone needs none",
        )
    if source.endswith(SAVED):
        return _saved_program(Path(source), ())["model"].module()
    model = _load_source(source)["model"]
    return model if factory.is_module(model) else model.module()


def _load_source(source: str) -> dict[str, Any]:
    """What a factory returns, or a model of a folder."""
    if source.startswith(pretrained.PREFIX):
        model = pretrained.load(source)
        return {"model": model, "module_name": type(model).__name__}
    return factory.export_arguments(source)


def _saved_program(path: Path, inputs: Sequence[ExampleInput]) -> dict[str, Any]:
    """A program that torch.export.save wrote."""
    import torch

    from turbine.aot.output import module_name_of

    if inputs:
        raise errors.ExportError(
            f"{path} has its own inputs and sizes",
            hint="leave out --input; sizes that vary are given to torch.export.export",
        )
    try:
        program = torch.export.load(path)
    except (OSError, RuntimeError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise errors.ExportError(
            f"cannot read {path}: {error}", hint="give a file that torch.export.save wrote"
        ) from error
    return {"model": program, "module_name": module_name_of(path.stem)}


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise errors.ExportError(
            f"no file {path}", hint="give a .pt2 or .onnx file, pkg.module:name or hf:FOLDER"
        )
