"""Constants of any dtype in IR. Dtypes that IREE has no constants of use a carrier type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from iree.compiler.dialects import arith, flow
from iree.compiler.ir import (
    Attribute,
    DenseElementsAttr,
    DenseResourceElementsAttr,
    Location,
    Module,
    RankedTensorType,
    ShapedType,
    Type,
    Value,
)
from numpy.typing import NDArray

from turbine import dtypes
from turbine.dtypes import Dtype

# Past this many bytes a constant is a resource: a blob that is neither printed nor uniqued.
_SMALL = 64


Convert = Callable[[Value, Type, Location], Value]


@dataclass(frozen=True)
class Carrier:
    """The dtype that stores a dtype: `parts` elements of it for each element."""

    dtype: Dtype
    parts: int = 1
    into: Convert | None = None  # from the carrier to the type itself; None if they are one
    back: Convert | None = None

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor of the carrier dtype."""
        return shape if self.parts == 1 else (*shape, self.parts)


def _bitcast(value: Value, to: Type, location: Location) -> Value:
    return flow.TensorBitCastOp(to, value, [], [], loc=location).result


def _narrow(value: Value, to: Type, location: Location) -> Value:
    return arith.TruncIOp(to, value, loc=location).result


def _widen(value: Value, to: Type, location: Location) -> Value:
    return arith.ExtUIOp(to, value, loc=location).result


def carrier(dtype: Dtype) -> Carrier:
    """IREE 3.13 hangs on large i1 constants and serializes neither fp8 nor complex ones."""
    if dtype.kind == "bool":
        return Carrier(dtypes.from_torch_name("int8"), 1, _narrow, _widen)
    if dtype.kind == "complex":
        return Carrier(dtypes.from_torch_name(f"float{dtype.bits // 2}"), 2, _bitcast, _bitcast)
    if not dtype.dlpack:
        return Carrier(dtypes.from_torch_name("int8"), 1, _bitcast, _bitcast)
    return Carrier(dtype)


def tensor_type(shape: Sequence[int | None], dtype: Dtype) -> Type:
    """The builtin tensor type; unsigned elements are signless here, as IREE wants them.

    A size of None is known only at run time.
    """
    dynamic = ShapedType.get_dynamic_size()
    sizes = [dynamic if size is None else size for size in shape]
    return RankedTensorType.get(sizes, Type.parse(dtype.mlir))


def carrier_type(shape: tuple[int, ...], dtype: Dtype) -> Type:
    """The type in which a tensor is stored."""
    held = carrier(dtype)
    return tensor_type(held.shape(shape), held.dtype)


def dense(name: str, raw: NDArray[Any], shape: tuple[int, ...], dtype: Dtype) -> Attribute:
    """A constant from the bytes of its elements, in the dtype's carrier type."""
    held, of = carrier(dtype), carrier_type(shape, dtype)
    elements = raw.view(held.dtype.numpy).reshape(held.shape(shape))
    if raw.nbytes <= _SMALL:
        return DenseElementsAttr.get(elements, signless=True, type=of)
    return DenseResourceElementsAttr.get_from_buffer(elements, name, of)


def constant(value: Attribute, location: Location) -> Value:
    """A constant at the current insertion point."""
    return arith.ConstantOp(value.type, value, loc=location).result


def from_carrier(value: Value, shape: tuple[int, ...], dtype: Dtype, location: Location) -> Value:
    """Convert a value from its carrier type."""
    into = carrier(dtype).into
    return value if into is None else into(value, tensor_type(shape, dtype), location)


def to_carrier(value: Value, shape: tuple[int, ...], dtype: Dtype, location: Location) -> Value:
    """Convert a value to its carrier type."""
    back = carrier(dtype).back
    return value if back is None else back(value, carrier_type(shape, dtype), location)


def elements(value: Attribute, dtype: Dtype) -> NDArray[Any]:
    """The elements of a constant whose type is its own carrier, as an array of its shape."""
    shape = tuple(value.type.shape)
    if not isinstance(value, DenseElementsAttr):
        return _resource_bytes(value).view(dtype.numpy).reshape(shape)
    try:
        return numpy.array(value).astype(dtype.numpy).reshape(shape)
    except TypeError:  # numpy has no type of this name
        one_by_one = [value[index] for index in range(len(value))]
        return numpy.array(one_by_one).astype(dtype.numpy).reshape(shape)


def _resource_bytes(value: Attribute) -> NDArray[numpy.uint8]:
    """The bytes of a resource, which IREE exposes as text, after four bytes of alignment."""
    with value.context, Location.unknown():
        holder = Module.create()
        holder.operation.attributes["turbine.value"] = value
    found = re.search(r'"0x([0-9A-Fa-f]*)"', str(holder.operation.get_asm()))
    assert found is not None
    return numpy.frombuffer(bytes.fromhex(found[1]), numpy.uint8)[4:]
