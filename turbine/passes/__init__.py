"""Passes over MLIR, one per file; each is also an option of `turbine opt`."""

from turbine.passes.add_metadata import AddMetadata as AddMetadata
from turbine.passes.base import Pass as Pass
from turbine.passes.base import run_passes as run_passes
from turbine.passes.catalog import PASSES as PASSES
from turbine.passes.expand_custom_ops import ExpandCustomOps as ExpandCustomOps
from turbine.passes.group_quantize import GroupQuantize as GroupQuantize
from turbine.passes.merge import Merge as Merge
from turbine.passes.merge import Merger as Merger
from turbine.passes.rename_parameters import RenameParameters as RenameParameters
