"""An op that traces tensors of a running program."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from turbine.capture.declared_ops import EMITTED, KEEP_OPERANDS
from turbine.mlir import flow
from turbine.mlir.ir import Value
from turbine.ops import ir_builder, schema
from turbine.ops.ir_builder import Builder
from turbine.runtime import run_trace

_SCHEMA = schema.parse("iree::trace_tensor(str trace_key, Tensor tensor) -> ()")


@torch.library.custom_op(
    _SCHEMA.qualified, mutates_args=(), schema="(str trace_key, Tensor tensor) -> ()"
)
def trace_tensor(trace_key: str, tensor: Tensor) -> None:
    """Pass a tensor to the trace callback; an exported program prints it to stderr."""
    run_trace.trace_tensor(trace_key, tensor.detach())


@trace_tensor.register_fake
def _(trace_key: str, tensor: Tensor) -> None:
    return None


@trace_tensor.register_vmap
def _(info: Any, in_dims: Any, trace_key: str, tensor: Tensor) -> tuple[None, None]:
    trace_tensor(trace_key, tensor.movedim(in_dims[1], 0))
    return None, None


def _emit(builder: Builder, trace_key: str, tensor: Value) -> None:
    flow.trace(trace_key, [tensor], flow.unknown_sizes(tensor, builder.location), builder.location)


EMITTED[_SCHEMA.qualified] = ir_builder.rule(_SCHEMA, _emit)
KEEP_OPERANDS.add(_SCHEMA.qualified)
# Graphs keep the op, which has no result.
has_side_effect(torch.ops.iree.trace_tensor.default)
