"""What procedures of iree-turbine are built from: types, jittables, globals and ops on tensors."""

from turbine.aot.abstract import (
    AbstractBool,
    AbstractF32,
    AbstractF64,
    AbstractI32,
    AbstractI64,
    AbstractIndex,
    AbstractTensor,
    abstractify,
)
from turbine.aot.globals import (
    export_buffers,
    export_global,
    export_global_tree,
    export_parameters,
)
from turbine.aot.iree_ops import IREE
from turbine.aot.jittable import jittable

__all__ = [
    "IREE",
    "AbstractBool",
    "AbstractF32",
    "AbstractF64",
    "AbstractI32",
    "AbstractI64",
    "AbstractIndex",
    "AbstractTensor",
    "abstractify",
    "export_buffers",
    "export_global",
    "export_global_tree",
    "export_parameters",
    "jittable",
]
