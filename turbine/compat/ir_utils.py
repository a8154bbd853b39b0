"""Settings of globals and modules, at the path that scripts of iree-turbine know."""

from turbine.aot.compiled_module import ModuleBuilderOptions
from turbine.aot.globals import GlobalAttributes

__all__ = ["GlobalAttributes", "ModuleBuilderOptions"]
