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
    """Keep the weights of matrix products in 4 or 8 bits, and multiply without unpacking them.

    Weights are rounded in groups of `group_size` along the axis that is summed over, each with a
    float16 scale; smaller groups are more accurate and larger. `include` and `exclude` are
    patterns such as "layers.*.gate" for the names of layers or of their weights. A model is
    exported first: `exporting` is what `export` takes. What is given stays as it is; of a compiled
    module, procedures are traced again. The result's `quantization` says what became of each
    weight.

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
