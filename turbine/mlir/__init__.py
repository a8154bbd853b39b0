"""Build, read and change MLIR."""

import sys
from types import ModuleType

from turbine import renamed

# For each op that Python meets, MLIR imports the module of its dialect. These have none, and the
# search, which takes longer than the rest of the work with an op, would be repeated each time.
for _dialect in ("torch", "torch_c", "tm_tensor"):
    _module = ModuleType(f"iree.compiler.dialects.{_dialect}")
    sys.modules.setdefault(_module.__name__, _module)

__getattr__ = renamed.modules(__name__, {"matching": "matchers", "rewriting": "rewrites"})
