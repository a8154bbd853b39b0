"""Weight-only quantization: a model or an export in, an export with packed weights out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from turbine import errors
from turbine.aot.compiled_module import CompiledModule
from turbine.aot.exporter import export
from turbine.aot.fx_programs import FxPrograms
from turbine.aot.output import Exported, ExportOutput
from turbine.capture.quantization import Quantizer
from turbine.compiler import host
from turbine.lower.emission import TargetQuery

# What can be quantized: anything that can be exported, or an export.
Source = (
    torch.nn.Module
    | ExportedProgram
    | FxPrograms
    | CompiledModule
    | type[CompiledModule]
    | ExportOutput
)


def quantize(
    source: Source,
    /,
    *,
    bits: int = 4,
    group_size: int = 32,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    **exporting: Any,
) -> ExportOutput:
    """Quantize the weights of matmuls to 4 or 8 bits; they are multiplied without unpacking.

    Weights are rounded in groups along the contracted axis, each with a float16 scale. The source
    is not changed; procedures of a compiled module are traced again.

    Args:
        source: a model, or an export of one.
        bits: 4 or 8.
        group_size: weights per scale; smaller groups are more accurate and take more memory.
        include: patterns such as "layers.*.gate" for names of layers or weights to quantize.
        exclude: patterns for those to keep.
        exporting: arguments of `export`, if the source is a model.

    Returns:
        An export whose `quantization` reports on each weight.

    >>> import torch, turbine
    >>> out = turbine.aot.export(torch.nn.Linear(64, 32), args=(torch.ones(1, 64),))
    >>> small = turbine.aot.quantize(out, bits=4)
    >>> [(layer.name, layer.bytes_before, layer.bytes_after) for layer in small.quantization.layers]
    [('weight', 8192, 1152)]
    """
    output = _export(source, exporting)
    quantizer = Quantizer(bits, group_size, include, exclude)
    output = replace(output, quantizer=quantizer)
    if output.module is None:
        packed = {name: quantizer(program) for name, program in output.programs.items()}
        entry_points = {name: Exported.of(program) for name, program in packed.items()}
        output = replace(output, entry_points=entry_points)
    lowered = output.lowered_anew(TargetQuery(host.default_target))
    return replace(output, lowered=lowered, quantization=quantizer.report())


def _export(source: Source, exporting: dict[str, Any]) -> ExportOutput:
    if not isinstance(source, ExportOutput):
        return export(source, **exporting)
    if exporting:
        raise errors.ConfigError(
            f"the model is exported already; {', '.join(exporting)} came too late",
            hint="give them to turbine.aot.export",
        )
    return source
