"""What procedures of iree-turbine are built from: jittables, globals and ops on tensors."""

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
    "export_buffers",
    "export_global",
    "export_global_tree",
    "export_parameters",
    "jittable",
]
