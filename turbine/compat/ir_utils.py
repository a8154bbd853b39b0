"""Options of globals and modules, at their path in iree-turbine."""

from turbine.aot.compiled_module import ModuleBuilderOptions
from turbine.aot.globals import GlobalAttributes

__all__ = ["GlobalAttributes", "ModuleBuilderOptions"]
