"""Cross between torch-dialect tensors and builtin ones."""

from __future__ import annotations

from iree.compiler.ir import Location, Operation, Type, Value


def from_builtin(value: Value, to: Type, location: Location) -> Value:
    """A builtin tensor as a torch value tensor."""
    return Operation.create(
        "torch_c.from_builtin_tensor", results=[to], operands=[value], loc=location
    ).result


def to_builtin(value: Value, to: Type, location: Location) -> Value:
    """A torch value tensor as a builtin tensor."""
    return Operation.create(
        "torch_c.to_builtin_tensor", results=[to], operands=[value], loc=location
    ).result
