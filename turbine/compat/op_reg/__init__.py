"""Custom ops as classes, as users of iree-turbine write them, over `turbine.ops`."""

from turbine.compat.op_reg import eager as eager
from turbine.compat.op_reg import impl_helper as impl_helper
from turbine.compat.op_reg.base import ALL_CUSTOM_OP_REGS as ALL_CUSTOM_OP_REGS
from turbine.compat.op_reg.base import CustomOp as CustomOp
from turbine.compat.op_reg.base import def_library as def_library
from turbine.compat.op_reg.building import FreeFuncKernelBuilder as FreeFuncKernelBuilder
from turbine.compat.op_reg.building import InlineKernelBuilder as InlineKernelBuilder
from turbine.compat.op_reg.building import KernelBuilder as KernelBuilder
from turbine.compat.op_reg.descriptors import ArgDescriptor as ArgDescriptor
from turbine.compat.op_reg.descriptors import AttrArg as AttrArg
from turbine.compat.op_reg.descriptors import EmptyOptionalTensorArg as EmptyOptionalTensorArg
from turbine.compat.op_reg.descriptors import IntArg as IntArg
from turbine.compat.op_reg.descriptors import TensorArg as TensorArg
from turbine.compat.op_reg.descriptors import TensorListArg as TensorListArg
from turbine.compat.op_reg.selection import KernelSelection as KernelSelection
