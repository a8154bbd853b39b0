"""The IREE namespace: ops of procedures on tensors and numbers, without PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from turbine import dtypes, errors
from turbine.aot import arithmetic, module_trace
from turbine.aot.abstract import AbstractScalar
from turbine.aot.arithmetic import INDEX, IrScalar, as_scalar, check
from turbine.aot.calls import as_tensor
from turbine.aot.values import IrTensor, from_tensor, size_product, tensor_type
from turbine.dtypes import Dtype
from turbine.mlir import flow, scalars
from turbine.mlir.ir import Type, Value

# A size or index: a Python int, or a number of the program.
Size = int | IrScalar


class IREE:
    """Ops of procedures. Sizes and indices are ints or numbers of the program."""

    @staticmethod
    def tensor_dim(
        source: Any, index: int, *, dtype: AbstractScalar | torch.dtype | None = None
    ) -> IrScalar:
        """The size of a tensor along an axis, as an index or another integer type."""
        size = _tensor(source).get_dim_value(index)
        return size if dtype is None else size.to(dtype)

    @staticmethod
    def tensor_empty(*dims: Any, dtype: torch.dtype = torch.float32) -> IrTensor:
        """An uninitialized tensor."""
        shape, of, sizes = _describe_new(_sizes(dims), dtype)
        made = flow.empty(of, sizes, module_trace.here())
        return IrTensor(made, shape, dtypes.of_torch(dtype), is_own=True)

    @staticmethod
    def tensor_splat(*dims: Any, value: Any, dtype: torch.dtype = torch.float32) -> IrTensor:
        """A tensor filled with one value."""
        row, location = dtypes.of_torch(dtype), module_trace.here()
        number = _element(value, row)
        shape, of, sizes = _describe_new(_sizes(dims), dtype)
        wide = tensor_type(shape, dtypes.from_torch_name(number.scalar.name))
        filled = flow.splat(number.value, wide, sizes, location)
        made = scalars.narrow(filled, of, number.scalar, location)
        return IrTensor(made, shape, row, is_own=True)

    @staticmethod
    def tensor_reshape(source: Any, *dims: Any) -> IrTensor:
        """The tensor in another shape with as many elements."""
        tensor, wanted = _tensor(source), _sizes(dims)
        _check_count(tensor, wanted)
        shape, of, sizes = _describe_new(wanted, tensor.dtype)
        value = flow.reshape(tensor.value, tensor.unknown_sizes(), of, sizes, module_trace.here())
        return IrTensor(value, shape, tensor.row, is_own=tensor.is_own)

    @staticmethod
    def tensor_slice(source: Any, *indices: Any) -> IrTensor:
        """A part of a tensor: for each axis a place, or a (start, length); the rest is whole.

        The axes stay: at a place, the length is one.
        """
        tensor = _tensor(source)
        if len(indices) > tensor.rank:
            raise _refusal(
                f"{len(indices)} indices for the axes of a {tensor.text()}",
                "give one place or (start, length) for each axis, at most",
            )
        starts = [*(_start(index) for index in indices), *[0] * (tensor.rank - len(indices))]
        whole = [tensor.size(axis) for axis in range(len(indices), tensor.rank)]
        lengths = [*(_length(index) for index in indices), *whole]
        for axis in range(len(indices)):
            _check_part(tensor, axis, starts[axis], lengths[axis])
        shape, of, _ = _describe_new(lengths, tensor.dtype)
        value = flow.extract(
            tensor.value, _places(starts), _places(lengths), of, module_trace.here()
        )
        return IrTensor(value, shape, tensor.row, is_own=tensor.is_own)

    @staticmethod
    def tensor_update(target: Any, update: Any, *start_indices: Any) -> IrTensor:
        """A copy of a tensor with a slice replaced, which starts at one index per axis."""
        tensor = _make_writable(_tensor(target))
        unknown = (None,) * tensor.rank
        part = as_tensor(update, tensor.row, unknown, "the update")
        if len(start_indices) != tensor.rank:
            raise _refusal(
                f"{len(start_indices)} starts for the axes of a {tensor.text()}",
                "give one start for each axis",
            )
        starts = _sizes(start_indices)
        for axis, start in enumerate(starts):
            _check_part(tensor, axis, start, part.size(axis))
        lengths = [part.size(axis) for axis in range(part.rank)]
        value = flow.update(
            tensor.value, _places(starts), part.value, _places(lengths), module_trace.here()
        )
        return IrTensor(value, tensor.shape, tensor.row, is_own=True)

    @staticmethod
    def tensor_trace(key: str, *tensors: Any) -> None:
        """Print tensors to stderr at run time, with a key."""
        values = [_tensor(tensor) for tensor in tensors]
        sizes = [size for tensor in values for size in tensor.unknown_sizes()]
        flow.trace(key, [tensor.value for tensor in values], sizes, module_trace.here())

    @staticmethod
    def select(condition: Any, yes: Any, no: Any) -> IrScalar:
        """One of two numbers; both are computed."""
        return arithmetic.select(condition, yes, no)

    @staticmethod
    def minimum(one: Any, two: Any) -> IrScalar:
        """The smaller of two numbers, as Python's `min`."""
        return arithmetic.select(two < one, two, one)

    @staticmethod
    def maximum(one: Any, two: Any) -> IrScalar:
        """The larger of two numbers, as Python's `max`."""
        return arithmetic.select(two > one, two, one)


def _refusal(fact: str, hint: str | None = None) -> errors.ProcedureError:
    return errors.ProcedureError(fact, where=module_trace.line(), hint=hint)


def _tensor(value: Any) -> IrTensor:
    module_trace.require("a builtin")
    if isinstance(value, torch.Tensor):
        return from_tensor(value)
    if not isinstance(value, IrTensor):
        raise _refusal(f"a {type(value).__name__} is not a tensor")
    return value


def _make_writable(tensor: IrTensor) -> IrTensor:
    """A copy that may be written: IREE would write to the memory of an argument."""
    if tensor.is_own:
        return tensor
    sizes = [tensor.size(axis) for axis in range(tensor.rank)]
    count = size_product(sizes)
    flat = IREE.tensor_reshape(tensor, count)
    room = IREE.tensor_empty(count + 1, dtype=tensor.dtype)
    copied = flow.copy_by(
        room.value, room.unknown_sizes(), flat.value, flat.unknown_sizes(), module_trace.here()
    )
    made = IREE.tensor_reshape(IrTensor(copied, flat.shape, tensor.row), *sizes)
    return IrTensor(made.value, tensor.shape, tensor.row, is_own=True)


def _size(size: Any) -> Size:
    is_int = isinstance(size, int) and not isinstance(size, bool)
    if is_int and size >= 0:
        return int(size)
    if isinstance(size, IrScalar) and size.scalar.python is int:
        return size.to(AbstractScalar(INDEX))
    raise _refusal(
        f"{size!r} is not a size or place", "give an int from 0 up, or an int of the program"
    )


def _sizes(sizes: tuple[Any, ...]) -> list[Size]:
    module_trace.require("a builtin")
    return [_size(size) for size in sizes]


def _places(sizes: list[Size]) -> list[int | Value]:
    return [size if isinstance(size, int) else size.value for size in sizes]


def _describe_new(
    sizes: list[Size], dtype: torch.dtype
) -> tuple[tuple[int | None, ...], Type, list[Value]]:
    """The shape and type of a new tensor, and its dynamic sizes."""
    shape = tuple(size if isinstance(size, int) else None for size in sizes)
    unknown = [size for size in sizes if isinstance(size, IrScalar)]
    for size in unknown:
        check(size >= 0, "a tensor of a negative size")
    return shape, tensor_type(shape, dtypes.of_torch(dtype)), [size.value for size in unknown]


def _start(index: Any) -> Size:
    if isinstance(index, tuple) and len(index) == 2:
        return _size(index[0])
    return _size(index)


def _length(index: Any) -> Size:
    return _size(index[1]) if isinstance(index, tuple) else 1


def _check_part(tensor: IrTensor, axis: int, start: Size, length: Size) -> None:
    """Check that a slice is inside its tensor, now or at run time."""
    size = tensor.size(axis)
    end = start + length
    if isinstance(end, int) and isinstance(size, int):
        if end > size:
            raise _refusal(f"out of range along {axis=}: {start=} {length=} {size=}")
        return
    inside = as_scalar(end, INDEX) <= size
    for place in (start, length):
        if isinstance(place, IrScalar):
            inside = inside & (place >= 0)
    check(inside, f"a part of a tensor is out of range along axis {axis}")


def _check_count(tensor: IrTensor, sizes: list[Size]) -> None:
    old = size_product([tensor.size(axis) for axis in range(tensor.rank)])
    new = size_product(sizes)
    if isinstance(old, int) and isinstance(new, int):
        if old != new:
            raise _refusal(f"a {tensor.text()} has {old} elements, the new shape has {new}")
        return
    check(as_scalar(old, INDEX) == new, "a reshape to another number of elements")


def _element(value: Any, row: Dtype) -> IrScalar:
    """The number to fill a tensor with; IREE has narrow numbers only as elements."""
    kind = row.name if row.name in dtypes.SCALARS else _WIDER.get(row.kind)
    if kind is None or not isinstance(value, (bool, int, float, IrScalar)):
        raise _refusal(f"{value!r} cannot fill a tensor of {row.name}")
    return as_scalar(value, dtypes.SCALARS[kind])


# By kind of element: the number type that narrower elements are converted from.
_WIDER = {"int": "int32", "uint": "int64", "float": "float32"}
