"""Weight-only quantization: a model or an export in, an export with packed weights out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from turbine import errors
from turbine.aot.exporting import export
from turbine.aot.output import Exported, ExportOutput
from turbine.capture import quantization
from turbine.lower.importer import lower_all


def quantize(
    source: torch.nn.Module | ExportedProgram | ExportOutput,
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
    exported first: `exporting` is what `export` takes. What is given stays as it is.
    The result's `quantization` says what became of each weight.

    >>> import torch, turbine
    >>> out = turbine.aot.export(torch.nn.Linear(64, 32), args=(torch.ones(1, 64),))
    >>> small = turbine.aot.quantize(out, bits=4)
    >>> [(layer.name, layer.bytes_before, layer.bytes_after) for layer in small.quantization.layers]
    [('weight', 8192, 1152)]
    """
    output = _exported(source, exporting)
    programs, report = quantization.quantize(
        output.programs, bits=bits, group_size=group_size, include=include, exclude=exclude
    )
    lowered = lower_all(programs, module_name=output.module_name, weights=output.weights)
    entry_points = {name: Exported.of(program) for name, program in programs.items()}
    return replace(output, entry_points=entry_points, lowered=lowered, quantization=report)


def _exported(
    source: torch.nn.Module | ExportedProgram | ExportOutput, exporting: dict[str, Any]
) -> ExportOutput:
    if not isinstance(source, ExportOutput):
        return export(source, **exporting)
    if exporting:
        raise errors.ConfigError(
            f"the model is exported already; {', '.join(exporting)} came too late",
            hint="give them to turbine.aot.export",
        )
    return source
