"""Types of arguments and values of procedures, under the names of iree-turbine."""

from turbine.aot.abstract import (
    AbstractBool,
    AbstractF32,
    AbstractF64,
    AbstractI32,
    AbstractI64,
    Abstractifiable,
    AbstractIndex,
    AbstractScalar,
    AbstractTensor,
    abstractify,
)
from turbine.aot.arithmetic import IrScalar
from turbine.aot.globals import Global as GlobalsDef
from turbine.aot.iree_ops import IREE as IREEEmitter
from turbine.aot.values import IrTensor
from turbine.errors import ProcedureError as ProcedureTraceError

# For isinstance. Turbine has one class where iree-turbine has several.
AbstractTypedef = AbstractTensor | AbstractScalar
IrImmediateScalar = IrScalar
IrImmediateTensor = IrTensor

__all__ = [
    "AbstractBool",
    "AbstractF32",
    "AbstractF64",
    "AbstractI32",
    "AbstractI64",
    "AbstractIndex",
    "AbstractScalar",
    "AbstractTensor",
    "AbstractTypedef",
    "Abstractifiable",
    "GlobalsDef",
    "IREEEmitter",
    "IrImmediateScalar",
    "IrImmediateTensor",
    "IrScalar",
    "IrTensor",
    "ProcedureTraceError",
    "abstractify",
]
