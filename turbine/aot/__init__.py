"""Ahead of time: export a model, compile it, ship and call the artifact."""

from turbine.aot.exporting import export as export
from turbine.aot.fx_programs import FxPrograms as FxPrograms
from turbine.aot.fx_programs import FxProgramsBuilder as FxProgramsBuilder
from turbine.aot.output import ExportOutput as ExportOutput
from turbine.aot.parameters import ParameterArchive as ParameterArchive
from turbine.aot.parameters import ParameterArchiveBuilder as ParameterArchiveBuilder
from turbine.aot.parameters import ParameterArchiveEntry as ParameterArchiveEntry
from turbine.aot.parameters import externalize_module_parameters as externalize_module_parameters
from turbine.aot.parameters import save_module_parameters as save_module_parameters
from turbine.aot.quantization import quantize as quantize
from turbine.capture.decompositions import current_aot_decompositions as current_aot_decompositions
from turbine.capture.decompositions import extend_aot_decompositions as extend_aot_decompositions
from turbine.capture.traits import ExternalTensorTrait as ExternalTensorTrait
