"""Ahead of time: export a model, compile it, ship and call the artifact."""

from turbine.aot.exporting import export as export
from turbine.aot.output import ExportOutput as ExportOutput
from turbine.aot.quantization import quantize as quantize
from turbine.capture.decompositions import current_aot_decompositions as current_aot_decompositions
from turbine.capture.decompositions import extend_aot_decompositions as extend_aot_decompositions
