"""The kernel selection of a call: arguments in, descriptors of arguments and results out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from turbine import errors
from turbine.compat.op_reg.descriptors import (
    ArgDescriptor,
    AttrArg,
    EmptyOptionalTensorArg,
    IntArg,
    TensorArg,
    TensorListArg,
)
from turbine.ops.schema import Schema
from turbine.ops.specialization import Axes

Descriptor = TypeVar("Descriptor", bound=ArgDescriptor)
Value = TypeVar("Value")
_INT = (int, torch.SymInt)
_FLOAT = (float, torch.SymFloat)
COUNTED = "arguments are counted from 0, in the order of the signature"


class Declared(Protocol):
    """An op with a schema."""

    declared: Any  # the op of turbine.ops

    @property
    def name(self) -> str:
        """Its name, without its namespace."""

    @property
    def schema(self) -> Schema:
        """Its arguments and results."""

    @property
    def qualified(self) -> str:
        """Its name, "namespace.name"."""


class KernelSelection:
    """The arguments of one call; `CustomOp.select` requests each by its index."""

    def __init__(self, op: Declared, args: Sequence[Any]) -> None:
        self.op = op
        self.args = list(args)
        self.arg_descs: list[Any] = [None] * len(self.args)  # a descriptor once it is requested
        self.inplace_tied_arg_descs: list[TensorArg] = []
        self.result_descs: list[Any] = []
        self.variant = "default"

    def arg_tensor(self, arg: int, *, inplace_tied: bool = False) -> TensorArg:
        """A tensor. If it is tied, the op writes it: yield its new value after the results."""
        desc = self._set(arg, TensorArg(self._value(arg, "a tensor", torch.Tensor)))
        if inplace_tied:
            self.inplace_tied_arg_descs.append(desc)
        return desc

    def arg_optional_tensor(self, arg: int) -> TensorArg | EmptyOptionalTensorArg:
        """A tensor that may be None."""
        value = self._value(arg, "a tensor or None", (torch.Tensor, type(None)))
        if value is None:
            return self._set(arg, EmptyOptionalTensorArg())
        return self._set(arg, TensorArg(value))

    def arg_tensor_list(self, arg: int) -> TensorListArg:
        """A list of tensors."""
        return self._set(arg, TensorListArg(self._list(arg, "tensors", torch.Tensor)))

    def arg_int(self, arg: int) -> IntArg:
        """An int that is a run-time value."""
        return self._set(arg, IntArg(self._value(arg, "an int", _INT)))

    def attr_str(self, arg: int) -> AttrArg:
        """A str that code is specialized for."""
        return self._set(arg, AttrArg(self._value(arg, "a str", str)))

    def attr_int(self, arg: int) -> AttrArg:
        """An int that code is specialized for."""
        return self._set(arg, AttrArg(_plain(self._value(arg, "an int", _INT), int)))

    def attr_float(self, arg: int) -> AttrArg:
        """A float that code is specialized for."""
        return self._set(arg, AttrArg(_plain(self._value(arg, "a float", _FLOAT), float)))

    def attr_list_int(self, arg: int) -> AttrArg:
        """A list of ints that code is specialized for."""
        return self._set(arg, AttrArg([_plain(v, int) for v in self._list(arg, "ints", _INT)]))

    def attr_list_float(self, arg: int) -> AttrArg:
        """A list of floats that code is specialized for."""
        floats = self._list(arg, "floats", _FLOAT)
        return self._set(arg, AttrArg([_plain(v, float) for v in floats]))

    def attr_list_bool(self, arg: int) -> AttrArg:
        """A list of bools that code is specialized for."""
        return self._set(arg, AttrArg(self._list(arg, "bools", bool)))

    def return_tensor(self, t: torch.Tensor) -> TensorArg:
        """The next result: a new tensor with the shape and dtype of this one."""
        desc = TensorArg(t)
        self.result_descs.append(desc)
        return desc

    def maybe_return_tensor(self, t: torch.Tensor | None) -> TensorArg | EmptyOptionalTensorArg:
        """The next result, which may be None."""
        if t is not None:
            return self.return_tensor(t)
        self.result_descs.append(EmptyOptionalTensorArg())
        return EmptyOptionalTensorArg()

    def return_new_tensor(self, size: Sequence[int], dtype: torch.dtype) -> TensorArg:
        """The next result, by its sizes and dtype."""
        return self.return_tensor(torch.empty(list(size), dtype=dtype, device="meta"))

    def return_int(self) -> IntArg:
        """Raise: results that are numbers are not supported."""
        raise errors.UnsupportedOp(
            f"{self.op.qualified}: return_int is not supported, an op returns tensors",
            hint="return a tensor without axes, return_new_tensor([], torch.int64)",
        )

    @property
    def spec_key(self) -> str:
        """Equal for calls that share code."""
        args = ",".join("None" if desc is None else desc.spec_key for desc in self.arg_descs)
        results = ",".join(desc.spec_key for desc in self.result_descs)
        return f"{self.op.qualified}::{self.variant}({args})->({results})"

    def check(self) -> None:
        """Raise unless every argument is requested, and those that the schema writes are tied."""
        for place, desc in enumerate(self.arg_descs):
            if desc is None:
                raise self._error(place, "is not requested by `select`")
            declared = self.op.schema.arguments[place]
            tied = any(desc is one for one in self.inplace_tied_arg_descs)
            if declared.is_written and not tied:
                raise self._error(
                    place, "is written", "request it with arg_tensor(..., inplace_tied=True)"
                )
            if tied and not declared.is_written:
                raise self._error(
                    place, "is tied in place", f"write Tensor(a!) {declared.name} in the signature"
                )

    def results(self, device: torch.device) -> Any:
        """Uninitialized tensors with the shapes and dtypes of the results."""
        given = [
            torch.empty(desc.t.shape, dtype=desc.t.dtype, device=device)
            if isinstance(desc, TensorArg)
            else None
            for desc in self.result_descs
        ]
        return given[0] if len(given) == 1 else tuple(given)

    def static(self) -> Mapping[str, Axes]:
        """For each argument, what code is specialized for."""
        pairs = zip(self.op.schema.arguments, self.arg_descs, strict=True)
        return {argument.name: _axes(desc) for argument, desc in pairs}

    def by_place(self, values: Sequence[Value]) -> list[Value | None]:
        """Yielded values, in the order of the schema: results, then arguments that are written."""
        given = [*self.result_descs, *self.inplace_tied_arg_descs]
        there = [desc for desc in given if desc]
        if len(values) == len(there):
            yielded = iter(values)
            filled = [next(yielded) if desc else None for desc in given]
        elif len(values) == len(given):
            filled = list(values)
        else:
            raise errors.CustomOpError(
                f"{self.op.qualified}: `generate` yields {len(values)} values, but `select` "
                f"declares {len(self.result_descs)} results and "
                f"{len(self.inplace_tied_arg_descs)} tied arguments",
                hint="yield the results in order, then the new value of each tied argument",
            )
        count = len(self.result_descs)
        pairs = list(zip(self.inplace_tied_arg_descs, filled[count:], strict=True))
        tied = [v for desc in self.arg_descs for one, v in pairs if one is desc]
        return [*filled[:count], *tied]

    def _value(self, arg: int, what: str, kind: type | tuple[type, ...]) -> Any:
        if not 0 <= arg < len(self.args):
            raise errors.CustomOpError(
                f"{self.op.qualified}: `select` requests argument {arg}, but the op takes "
                f"{len(self.args)}",
                hint=COUNTED,
            )
        if self.arg_descs[arg] is not None:
            raise self._error(arg, "is requested twice by `select`")
        value = self.args[arg]
        if not isinstance(value, kind):
            raise self._error(arg, f"is a {type(value).__name__}, but `select` requests {what}")
        return value

    def _list(self, arg: int, what: str, kind: type | tuple[type, ...]) -> list[Any]:
        values = list(self._value(arg, f"a list of {what}", (list, tuple)))
        for value in values:
            if not isinstance(value, kind):
                raise self._error(
                    arg,
                    f"contains a {type(value).__name__}, but `select` requests a list of {what}",
                )
        return values

    def _set(self, arg: int, desc: Descriptor) -> Descriptor:
        self.arg_descs[arg] = desc
        return desc

    def _error(self, arg: int, what: str, hint: str | None = None) -> errors.CustomOpError:
        name = self.op.schema.arguments[arg].name
        return errors.CustomOpError(
            f"{self.op.qualified}: argument {arg}, {name}, {what}", hint=hint
        )


def _plain(value: Any, kind: type) -> Any:
    """A symbolic number as its current value."""
    return value if isinstance(value, (bool, int, float)) else kind(value)


def _axes(desc: ArgDescriptor | None) -> Axes:
    if isinstance(desc, AttrArg):
        return True
    if isinstance(desc, TensorArg):
        return _static_axes(desc.spec_dims)
    if isinstance(desc, TensorListArg):
        return {axis for sizes in desc.spec_dims for axis in _static_axes(sizes)}
    return False


def _static_axes(sizes: Sequence[int | None]) -> set[int]:
    return {axis for axis, size in enumerate(sizes) if size is not None}
