"""Export an ONNX model: a file in, an ExportOutput out."""

from __future__ import annotations

from pathlib import Path

from turbine.aot import provenance
from turbine.aot.output import Exported, ExportOutput, module_name_of
from turbine.lower.importer import DEFAULT_NAME
from turbine.lower.onnx import lower_onnx


def export_onnx(path: str | Path, *, module_name: str | None = None) -> ExportOutput:
    """Export the model of an .onnx file, through IREE's importer.

    Weights are constants of the code. Arguments are passed in the order of the graph's inputs, or
    by their names; several results are a dict by name.

    Args:
        path: the file; `pip install turbine[onnx]` reads it.
        module_name: what IREE's tools call the module; the file's name unless given.

    Raises:
        ExportError: if the file is not an ONNX model.
        UnsupportedOp: if the importer or the compiler lacks an operator.

    >>> import turbine
    >>> turbine.aot.export_onnx("model.onnx").compile("model.turbine")  # doctest: +SKIP
    """
    file = Path(path)
    name = module_name or module_name_of(file.stem)
    found = lower_onnx(file, name)
    # A weight is used once at least; what a program does is not counted in ONNX.
    load = 2 * found.weight_count / 1e6
    return ExportOutput(
        {DEFAULT_NAME: Exported(found.signature, load)},
        found.lowered,
        name,
        {**provenance.of(file), "model": file.name, "commit": None},
        weights="inline",
    )
