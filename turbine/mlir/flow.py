"""Emit tensor ops at the insertion point: sizes, slices, new tensors, barriers and traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iree.compiler.dialects import cf, flow, iree_tensor_ext, tensor, util
from iree.compiler.ir import (
    Location,
    RankedTensorType,
    ShapedType,
    Type,
    Value,
)

from turbine import dtypes
from turbine.mlir import scalars

_INDEX = dtypes.SCALARS["index"]


def dim(value: Value, axis: int, location: Location) -> Value:
    """The size of a tensor along an axis."""
    return tensor.DimOp(value, scalars.constant(axis, _INDEX, location), loc=location).result


def unknown_sizes(value: Value, location: Location) -> list[Value]:
    """The dynamic sizes of a tensor, in order."""
    of = RankedTensorType(value.type)
    return [dim(value, axis, location) for axis in range(of.rank) if of.is_dynamic_dim(axis)]


def separate(value: Value, location: Location) -> Value:
    """The tensor after a barrier: its producer is not fused with its consumers.

    Unlike `util.optimization_barrier`, this one does not make the caller wait in between.
    """
    return start_compute(value, location)


def keep_apart(value: Value, location: Location) -> Value:
    """The tensor after a barrier that gives it memory of its own; its sizes are not known."""
    return util.OptimizationBarrierOp([value.type], [value], loc=location).results[0]


def tie_sizes(value: Value, sizes: Sequence[Value], location: Location) -> Value:
    """The tensor with its dynamic sizes, in order, where the compiler does not know them."""
    return flow.TensorTieShapeOp(value, sizes, loc=location).result


def cast(value: Value, to: Type, location: Location) -> Value:
    """Cast a tensor to a type with more or fewer static sizes."""
    return value if value.type == to else tensor.CastOp(to, value, loc=location).result


def agree(one: Type, other: Type) -> bool:
    """Whether two tensor types differ only in which sizes are static."""
    if not isinstance(one, RankedTensorType) or not isinstance(other, RankedTensorType):
        return False
    if one.rank != other.rank or one.element_type != other.element_type:
        return False
    unknown = ShapedType.get_dynamic_size()
    sizes = zip(one.shape, other.shape, strict=True)
    return all(unknown in pair or len(set(pair)) == 1 for pair in sizes)


def from_number(value: Value, location: Location) -> Value:
    """Convert a number to a 0-d tensor."""
    of = RankedTensorType.get([], value.type)
    return tensor.FromElementsOp(of, [value], loc=location).result


def empty(of: Type, sizes: Sequence[Value], location: Location) -> Value:
    """An uninitialized tensor; `sizes` are its dynamic sizes."""
    return flow.TensorEmptyOp(of, sizes, loc=location).result


def splat(number: Value, of: Type, sizes: Sequence[Value], location: Location) -> Value:
    """A tensor of one repeated value."""
    return flow.TensorSplatOp(of, number, sizes, loc=location).result


def reshape(
    value: Value, sizes: Sequence[Value], of: Type, new_sizes: Sequence[Value], location: Location
) -> Value:
    """Reshape a tensor."""
    return flow.TensorReshapeOp(of, value, sizes, new_sizes, loc=location).result


# Marks a dynamic index among static ones.
Places = Sequence[int | Value]


def extract(value: Value, starts: Places, lengths: Places, of: Type, location: Location) -> Value:
    """A slice of a tensor. `flow.tensor.slice` is correct only for contiguous slices."""
    return tensor.ExtractSliceOp(of, value, *_places(starts, lengths), loc=location).result


def update(
    target: Value, starts: Places, part: Value, lengths: Places, location: Location
) -> Value:
    """Replace a slice of a tensor."""
    return tensor.InsertSliceOp(part, target, *_places(starts, lengths), loc=location).result


def _places(starts: Places, lengths: Places) -> list[Any]:
    """Values, then ints, each for starts, lengths and steps."""
    rows = (starts, lengths, [1] * len(starts))
    unknown = ShapedType.get_dynamic_size()
    values = [[place for place in row if not isinstance(place, int)] for row in rows]
    known = [[place if isinstance(place, int) else unknown for place in row] for row in rows]
    return [*values, *known]


def copy_by(
    room: Value,
    room_sizes: Sequence[Value],
    flat: Value,
    sizes: Sequence[Value],
    location: Location,
) -> Value:
    """Copy a tensor of one axis through a larger one.

    IREE 3.13 sees through a copy into a tensor of the same size, and through `tensor.insert_slice`.
    """
    start = scalars.constant(0, _INDEX, location)
    length = dim(flat, 0, location)
    filled = flow.TensorUpdateOp(
        room, room_sizes, [start], flat, sizes, results=[room.type], loc=location
    ).result
    return flow.TensorSliceOp(
        flat.type, filled, room_sizes, [start], [length], sizes, loc=location
    ).result


def trace(key: str, values: Sequence[Value], sizes: Sequence[Value], location: Location) -> None:
    """Trace tensors at run time."""
    flow.TensorTraceOp(key, values, sizes, loc=location)


def start_compute(value: Value, location: Location) -> Value:
    """A tensor after a start barrier: later work is not moved before it."""
    sizes = unknown_sizes(value, location)
    return iree_tensor_ext.ComputeBarrierStartOp(value.type, value, sizes, loc=location).result


def end_compute(value: Value, location: Location) -> Value:
    """A tensor after an end barrier: earlier work is not moved after it."""
    sizes = unknown_sizes(value, location)
    return iree_tensor_ext.ComputeBarrierEndOp(value.type, value, sizes, loc=location).result


def check(condition: Value, message: str, location: Location) -> None:
    """Make the call fail with a message unless a condition holds."""
    cf.AssertOp(condition, message, loc=location)
