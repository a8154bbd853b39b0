"""Prevent fusion: insert a barrier after each tensor op."""

from __future__ import annotations

from iree.compiler.ir import InsertionPoint, Operation, RankedTensorType, Value

from turbine.mlir import context, flow
from turbine.mlir.matchers import operation_of, walk

_DIALECTS = ("linalg.", "iree_linalg_ext.", "tensor.")
# Ops that compute nothing: uninitialized tensors and reshapes.
_VIEWS = (
    "linalg.fill",
    "tensor.empty",
    "tensor.cast",
    "tensor.expand_shape",
    "tensor.collapse_shape",
)


def isolate_ops(source: bytes) -> bytes:
    """Insert barriers between the ops of a program after IREE's input conversion."""
    module = context.parse(source)
    ops = [op for op in walk(module.operation) if _computes(op)]
    for tensor in [result for op in ops for result in op.results]:
        if isinstance(tensor.type, RankedTensorType):
            _insert_barrier(tensor)
    return context.to_bytecode(module)


def _computes(op: Operation) -> bool:
    return op.name.startswith(_DIALECTS) and op.name not in _VIEWS


def _insert_barrier(tensor: Value) -> None:
    op = operation_of(tensor)
    assert op is not None
    before = list(tensor.uses)
    with InsertionPoint.after(op):
        separate = flow.separate(tensor, op.location)
    for use in before:
        use.owner.operands[use.operand_number] = separate
