"""Cross between torch-dialect tensors and builtin ones, and check values at run time."""

from __future__ import annotations

from iree.compiler.ir import Location, Operation, StringAttr, Type, Value


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


def check(condition: Value, message: str, location: Location) -> None:
    """Make the call fail with a message unless a 0-d bool tensor holds."""
    with location:
        truth = Operation.create(
            "torch.aten.Bool.Tensor", results=[Type.parse("!torch.bool")], operands=[condition]
        ).result
        attributes = {"message": StringAttr.get(message)}
        Operation.create("torch.runtime.assert", operands=[truth], attributes=attributes)
