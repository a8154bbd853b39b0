"""Names of iree-turbine's importer that IREE still has."""

from iree.compiler.extras.fx_importer import TypeSubclassMap

__all__ = ["TypeSubclassMap"]
