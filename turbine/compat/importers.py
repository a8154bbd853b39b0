"""What iree-turbine's importer is made of, as far as IREE has it."""

from iree.compiler.extras.fx_importer import TypeSubclassMap

__all__ = ["TypeSubclassMap"]
