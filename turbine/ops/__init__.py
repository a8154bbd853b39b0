"""Custom ops: declared once, compiled on the first call."""

from turbine.ops.declaring import DeclaredOp as DeclaredOp
from turbine.ops.declaring import custom_op as custom_op
from turbine.ops.emitting import Builder as Builder
