"""Build, read and change MLIR."""

from turbine import renamed

__getattr__ = renamed.modules(__name__, {"matching": "matchers", "rewriting": "rewrites"})
