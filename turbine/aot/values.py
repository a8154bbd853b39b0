"""Tensors of a procedure while it is traced: known only at run time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from turbine import dtypes, errors
from turbine.aot import module_trace
from turbine.aot.arithmetic import INDEX, INT64, IrScalar, constant, convert
from turbine.capture.program import Weight
from turbine.dtypes import Dtype
from turbine.mlir import constants, flow
from turbine.mlir.ir import Type, Value


class IrTensor:
    """A tensor that is known only at run time.

    Of `shape`, an int is a size that is known, a name stands for one that has this name in the
    signature, and None for any other one. `get_dim_value` gives sizes as numbers to compute with.
    """

    def __init__(
        self,
        value: Value | None,
        shape: tuple[int | str | None, ...],
        row: Dtype,
        store: Callable[[Any], None] | None = None,
        *,
        is_own: bool = False,
        weight: Weight | None = None,
    ) -> None:
        self._value = value
        self.weight = weight  # that it is for good; it has a value once that is asked for
        self.shape = shape
        self.row = row
        self.is_own = is_own or store is not None  # its memory is not a caller's
        self._store = store
        self._sizes: dict[int, IrScalar] = {}

    @property
    def value(self) -> Value:
        """The tensor in IR."""
        if self._value is None:
            assert self.weight is not None
            trace = module_trace.require("a weight")
            self._value = trace.weights.load(self.weight, module_trace.here())
        return self._value

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its elements."""
        return self.row.torch

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<IrTensor {self.text()}>"

    def text(self) -> str:
        """Its dtype and shape."""
        return type_text(self.row, self.shape)

    def __bool__(self) -> NoReturn:
        raise errors.ProcedureError(
            "a tensor known only at run time cannot decide an if or a while",
            where=module_trace.line(),
            hint="decide inside a jittable with torch.where",
        )

    def set(self, value: Any) -> None:
        """Store a value to the global that this was loaded from."""
        if self._store is None:
            raise errors.ProcedureError(
                f"a {self.text()} that is not a global cannot be set",
                where=module_trace.line(),
                hint="declare a global of the class: x = export_global(value, mutable=True)",
            )
        self._store(value)

    def get_dim_value(self, axis: int) -> IrScalar:
        """The size along an axis, as a number of the program."""
        place = axis + self.rank if axis < 0 else axis
        if not 0 <= place < self.rank:
            raise errors.ProcedureError(
                f"axis out of range: {axis=} rank={self.rank}",
                where=module_trace.line(),
                hint="axes are counted from 0, or from -1 at the end",
            )
        if place not in self._sizes:
            self._sizes[place] = self._measure(place)
        return self._sizes[place]

    dim = get_dim_value

    def _measure(self, axis: int) -> IrScalar:
        size = self.shape[axis]
        if isinstance(size, int):
            return constant(size, INDEX)
        return IrScalar(flow.dim(self.value, axis, module_trace.here()), INDEX)

    def size(self, axis: int) -> int | IrScalar:
        """The size along an axis; an int if it is static."""
        size = self.shape[axis]
        return size if isinstance(size, int) else self.get_dim_value(axis)

    def unknown_sizes(self) -> list[Value]:
        """The dynamic sizes."""
        return [
            self.get_dim_value(axis).value
            for axis, size in enumerate(self.shape)
            if not isinstance(size, int)
        ]

    def as_type(self, shape: tuple[int | str | None, ...]) -> IrTensor:
        """The tensor with other static sizes, which were checked."""
        value = flow.cast(self.value, tensor_type(shape, self.row), module_trace.here())
        return IrTensor(value, shape, self.row, is_own=self.is_own)

    def become(self, other: IrTensor) -> None:
        """Replace the value, as an in-place op does."""
        if self._store is not None:
            self._store(other)
        self._value, self.weight = other.value, None


def type_text(row: Dtype, shape: tuple[Any, ...]) -> str:
    """A dtype and a shape, "float32[?, 8]"."""
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return f"{row.name}[{sizes}]"


def tensor_type(shape: tuple[int | str | None, ...], row: Dtype) -> Type:
    """The IR type; sizes with names are dynamic."""
    return constants.tensor_type(without_names(shape), row)


def without_names(shape: tuple[int | str | None, ...]) -> tuple[int | None, ...]:
    """The static sizes, and None for dynamic ones."""
    return tuple(size if isinstance(size, int) else None for size in shape)


def from_tensor(tensor: torch.Tensor) -> IrTensor:
    """A torch tensor as a value of the program."""
    trace = module_trace.require("a tensor")
    return from_weight(trace.weight_of(tensor, "constant"))


def from_weight(weight: Weight, store: Callable[[Any], None] | None = None) -> IrTensor:
    """The current value of a weight; one that is never written is loaded on first use."""
    shape, row = weight.shape, dtypes.of_torch(weight.tensor.dtype)
    if not weight.mutable:
        return IrTensor(None, shape, row, store, weight=weight)
    builder = module_trace.require("a weight").weights
    return IrTensor(builder.load(weight, module_trace.here()), shape, row, store)


def from_number(number: IrScalar) -> IrTensor:
    """A number as a tensor without axes; an index is an int64."""
    plain = convert(number, INT64) if number.scalar is INDEX else number
    value = flow.from_number(plain.value, module_trace.here())
    return IrTensor(value, (), dtypes.from_torch_name(plain.scalar.name))


def size_product(sizes: list[int | IrScalar]) -> Any:
    """The product of sizes: an int if all are."""
    return math.prod(sizes)
