"""Rows of torch tensors, for loops over them: count, take and put."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler.ir import Location, Operation, Type, Value

from turbine.mlir import torch_values

# All ops go to the current insertion point, with the current location.


def size(tensor: Value, axis: int) -> Value:
    """The size of an axis, as a torch int."""
    return _op("aten.size.int", "!torch.int", tensor, torch_values.number(axis))


def empty(sizes: Sequence[Value | int], of: Type) -> Value:
    """A tensor of unspecified values; `sizes` are torch ints or numbers."""
    builtin = torch_values.builtin_type(of)
    given = [torch_values.to_index(one) for one in sizes if isinstance(one, Value)]
    tensor = Operation.create("tensor.empty", results=[builtin], operands=given).result
    return torch_values.from_builtin(tensor, of, Location.current)


def take(tensor: Value, index: Value) -> Value:
    """The row with an index."""
    parts = torch_values.tensor_parts(tensor.type)
    assert parts is not None
    row = f"!torch.vtensor<[{','.join(parts[0][1:])}],{parts[1]}>"
    return _op("aten.select.int", row, tensor, torch_values.number(0), index)


def put(tensor: Value, index: Value, row: Value) -> Value:
    """The tensor with one row replaced."""
    parts = torch_values.tensor_parts(row.type)
    assert parts is not None
    first, one = torch_values.number(0), torch_values.number(1)
    block = f"!torch.vtensor<[{','.join(['1', *parts[0]])}],{parts[1]}>"
    source = _op("aten.unsqueeze", block, row, first)
    end = _op("aten.add.int", "!torch.int", index, one)
    return _op("aten.slice_scatter", tensor.type, tensor, source, first, index, end, one)


def _op(name: str, result: Type | str, *operands: Value) -> Value:
    of = Type.parse(result) if isinstance(result, str) else result
    return Operation.create(f"torch.{name}", results=[of], operands=list(operands)).result
