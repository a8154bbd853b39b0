"""Build the IR that turns packed integers into floats again, at the current insertion point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler.dialects import flow
from iree.compiler.ir import IntegerAttr, IntegerType, Location, Operation, Type, Value

from turbine.dtypes import Dtype
from turbine.mlir import torch_values


@dataclass(frozen=True)
class Grouped:
    """A matrix of [rows, columns] whose rows are cut into groups; the last one may stand out."""

    rows: int
    columns: int
    bits: int
    group_size: int
    dtype: Dtype

    @property
    def groups(self) -> int:
        """Groups in each row."""
        return -(-self.columns // self.group_size)

    @property
    def padded(self) -> int:
        """Elements of each row in whole groups."""
        return self.groups * self.group_size

    @property
    def packed_shape(self) -> tuple[int, int]:
        """The shape of the packed integers, in bytes."""
        return self.rows, self.padded * self.bits // 8

    @property
    def group_shape(self) -> tuple[int, int, int]:
        """The shape of what each group has one of."""
        return self.rows, self.groups, 1


def dequantize(of: Grouped, packed: Value, scale: Value, zero: Value, location: Location) -> Value:
    """(q - zero) * scale, a torch tensor of [rows, columns], from builtin tensors."""
    with location:
        flat = (of.rows, of.padded)
        floats = _torch(_floats(of, packed), flat, of.dtype)
        shape = (of.rows, of.groups, of.group_size)
        grouped = _op("view", [floats, _list(shape)], shape, of.dtype)
        zeros, scales = (_torch(value, of.group_shape, of.dtype) for value in (zero, scale))
        shifted = _op("sub.Tensor", [grouped, zeros, _integer(1)], shape, of.dtype)
        scaled = _op("mul.Tensor", [shifted, scales], shape, of.dtype)
        rows = _op("view", [scaled, _list(flat)], flat, of.dtype)
        if of.columns == of.padded:
            return rows
        ends = [_integer(number) for number in (1, 0, of.columns, 1)]
        return _op("slice.Tensor", [rows, *ends], (of.rows, of.columns), of.dtype)


def transpose(value: Value, shape: tuple[int, int], dtype: Dtype, location: Location) -> Value:
    """A torch matrix of some shape with its axes exchanged."""
    with location:
        return _op("permute", [value, _list((1, 0))], shape[::-1], dtype)


def _floats(of: Grouped, packed: Value) -> Value:
    """Unsigned integers of a few bits as floats."""
    shape = f"{of.rows}x{of.padded}"
    if of.bits < 8:
        narrow = Type.parse(f"tensor<{shape}xi{of.bits}>")
        packed = flow.TensorBitCastOp(narrow, packed, [], []).result
    wide, floats = (Type.parse(f"tensor<{shape}x{element}>") for element in ("i32", of.dtype.mlir))
    integers = Operation.create("arith.extui", results=[wide], operands=[packed]).result
    return Operation.create("arith.uitofp", results=[floats], operands=[integers]).result


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
