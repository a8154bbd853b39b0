"""Calls to functions over builtin types from IR over torch types."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler.ir import (
    Context,
    FlatSymbolRefAttr,
    InsertionPoint,
    Location,
    Operation,
    RankedTensorType,
    Type,
    Value,
)

from turbine.mlir import torch_values


class Builder:
    """Emits IR at the current insertion point and location."""

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or Context.current

    def to_native_type(self, t: Type) -> Type:
        """The builtin type of a torch tensor or scalar; other types are returned unchanged."""
        with self.context:
            return torch_values.builtin_type(t)

    def get_tensor_dims(self, tensor_type: Type) -> list[int | None]:
        """The sizes of a tensor, None for a dynamic one."""
        tensor = RankedTensorType(self.to_native_type(tensor_type))
        return [
            None if tensor.is_dynamic_dim(axis) else tensor.get_dim_size(axis)
            for axis in range(tensor.rank)
        ]

    def get_tensor_element_type(self, tensor_type: Type) -> Type:
        """The type of a tensor's elements."""
        return RankedTensorType(self.to_native_type(tensor_type)).element_type

    def call_native(
        self, callee_name: str, result_types: Sequence[Type], *operands: Value
    ) -> list[Value]:
        """Call a function over builtin types; arguments and results are converted."""
        where = Location.current
        call = Operation.create(
            "func.call",
            results=[self.to_native_type(t) for t in result_types],
            operands=[
                torch_values.convert(v, self.to_native_type(v.type), where) for v in operands
            ],
            attributes={"callee": FlatSymbolRefAttr.get(callee_name)},
            ip=InsertionPoint.current,
        )
        return [
            torch_values.convert(value, to, where)
            for value, to in zip(call.results, result_types, strict=True)
        ]
