"""Emit the dequantization of packed integers to floats, at the current insertion point."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler.dialects import flow
from iree.compiler.ir import IntegerAttr, IntegerType, Location, Operation, Type, Value

from turbine.dtypes import Dtype
from turbine.mlir import torch_values
from turbine.packed_weights import Grouping


def dequantize(
    of: Grouping, dtype: Dtype, packed: Value, scales: Value, location: Location
) -> Value:
    """q * scale, a torch tensor of [outputs, columns], from builtin tensors."""
    with location:
        shape = (*of.scales_shape, of.group_size)
        integers = _integers(of, dtype, packed, shape)
        each = _torch(scales, of.scales_shape, dtype)
        each = _op("unsqueeze", [each, _integer(2)], (*of.scales_shape, 1), dtype)
        scaled = _op("mul.Tensor", [integers, each], shape, dtype)
        flat = (of.outputs, of.padded)
        rows = _op("view", [scaled, _list(flat)], flat, dtype)
        if of.columns == of.padded:
            return rows
        ends = [_integer(number) for number in (1, 0, of.columns, 1)]
        return _op("slice.Tensor", [rows, *ends], (of.outputs, of.columns), dtype)


def transpose(value: Value, shape: tuple[int, int], dtype: Dtype, location: Location) -> Value:
    """Transpose a torch matrix of this shape."""
    with location:
        return _op("permute", [value, _list((1, 0))], shape, dtype)


def _integers(of: Grouping, dtype: Dtype, packed: Value, shape: tuple[int, ...]) -> Value:
    """Unpack the integers to floats."""
    if of.bits == 8:
        return _torch(_floats(packed, shape, dtype), shape, dtype)
    # Each byte holds one integer of the group's first half and one of its second half.
    pairs = (*of.packed_shape, 2)
    narrow = _builtin(pairs, "i4")
    floats = _floats(flow.TensorBitCastOp(narrow, packed, [], []).result, pairs, dtype)
    halves = (*of.scales_shape, 2, of.group_bytes)
    axes = _list((0, 1, 3, 2))
    ordered = _op("permute", [_torch(floats, pairs, dtype), axes], halves, dtype)
    return _op("view", [ordered, _list(shape)], shape, dtype)


def _floats(integers: Value, shape: Sequence[int], dtype: Dtype) -> Value:
    wide, floats = _builtin(shape, "i32"), _builtin(shape, dtype.mlir)
    extended = Operation.create("arith.extsi", results=[wide], operands=[integers]).result
    return Operation.create("arith.sitofp", results=[floats], operands=[extended]).result


def _builtin(shape: Sequence[int], element: str) -> Type:
    return Type.parse(f"tensor<{''.join(f'{size}x' for size in shape)}{element}>")


def _torch(value: Value, shape: Sequence[int], dtype: Dtype) -> Value:
    return torch_values.from_builtin(value, _type(shape, dtype), Location.current)


def _op(name: str, operands: Sequence[Value], shape: Sequence[int], dtype: Dtype) -> Value:
    return Operation.create(
        f"torch.aten.{name}", results=[_type(shape, dtype)], operands=list(operands)
    ).result


def _type(shape: Sequence[int], dtype: Dtype) -> Type:
    return Type.parse(f"!torch.vtensor<[{','.join(map(str, shape))}],{dtype.torch_mlir}>")


def _integer(number: int) -> Value:
    attributes = {"value": IntegerAttr.get(IntegerType.get_signless(64), number)}
    return Operation.create(
        "torch.constant.int", results=[Type.parse("!torch.int")], attributes=attributes
    ).result


def _list(numbers: Sequence[int]) -> Value:
    return Operation.create(
        "torch.prim.ListConstruct",
        results=[Type.parse("!torch.list<int>")],
        operands=[_integer(number) for number in numbers],
    ).result
