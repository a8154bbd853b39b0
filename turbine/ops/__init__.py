"""Custom ops: declared once, compiled on the first call; and the built-in ops."""

from turbine import needs_torch as needs_torch
from turbine.capture.grouped_product import Packed as Packed
from turbine.ops.convolution import conv_2d_nhwc_fhwc as conv_2d_nhwc_fhwc
from turbine.ops.convolution import generic_conv as generic_conv
from turbine.ops.declaration import custom_op as custom_op
from turbine.ops.declared_op import DeclaredOp as DeclaredOp
from turbine.ops.dot_product import attention as attention
from turbine.ops.ir_builder import Builder as Builder
from turbine.ops.normalization import rms_norm as rms_norm
from turbine.ops.placement import barrier_on_logical_device as barrier_on_logical_device
from turbine.ops.placement import compute_barrier_end as compute_barrier_end
from turbine.ops.placement import compute_barrier_start as compute_barrier_start
from turbine.ops.placement import transfer_to_logical_device as transfer_to_logical_device
from turbine.ops.quantized import pack_weight as pack_weight
from turbine.ops.quantized import quantized_matmul as quantized_matmul
from turbine.ops.rotary import rotary_embedding as rotary_embedding
from turbine.ops.rotary import rotary_tables as rotary_tables
from turbine.ops.slices import insert_slice as insert_slice
from turbine.ops.tensor_trace import trace_tensor as trace_tensor
