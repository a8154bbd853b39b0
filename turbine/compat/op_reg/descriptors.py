"""Descriptors of arguments and results that `CustomOp.select` makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from turbine import dtypes, errors

# A size that is part of the code, or None for one that may differ from call to call.
Sizes = list[int | None]


@dataclass
class TensorArg:
    """A tensor; code is specialized for its dtype, its rank and the sizes in `spec_dims`."""

    t: torch.Tensor
    spec_dims: Sizes = field(init=False)
    ir_arity: ClassVar[int] = 1
    is_list: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.spec_dims = [None] * self.t.ndim

    def specialize_all_dims(self) -> None:
        """Specialize code for every size."""
        self.specialize_dims(*range(self.t.ndim))

    def specialize_dims(self, *indices: int) -> None:
        """Specialize code for the sizes of these axes; -1 is the last axis."""
        for axis in indices:
            self.spec_dims[axis] = _require_static(self.t, axis)

    @property
    def maybe_tensor_value(self) -> torch.Tensor:
        """The tensor."""
        return self.t

    @property
    def spec_key(self) -> str:
        """Equal for calls that share code."""
        return f"tensor[{self.t.ndim}:{self.t.dtype}]<{self.spec_dims}>"

    @property
    def mlir_type_asm(self) -> str:
        """The builtin type, with the sizes that are specialized."""
        return _type(self.t, self.spec_dims)


@dataclass
class TensorListArg:
    """A list of tensors; code is specialized for its length."""

    ts: Sequence[torch.Tensor]
    spec_dims: list[Sizes] = field(init=False)
    is_list: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.spec_dims = [[None] * t.ndim for t in self.ts]

    @property
    def ir_arity(self) -> int:
        """The number of IR values."""
        return len(self.ts)

    @property
    def maybe_tensor_value(self) -> Sequence[torch.Tensor]:
        """The tensors."""
        return self.ts

    @property
    def spec_key(self) -> str:
        """Equal for calls that share code."""
        kinds = ",".join(f"{t.ndim}:{t.dtype}" for t in self.ts)
        return f"tensor[{kinds}]<{self.spec_dims}>"

    @property
    def mlir_type_asm(self) -> list[str]:
        """The builtin type of each."""
        return [_type(t, dims) for t, dims in zip(self.ts, self.spec_dims, strict=True)]


@dataclass
class IntArg:
    """An int that is a run-time value."""

    v: int | torch.SymInt
    ir_arity: ClassVar[int] = 1
    is_list: ClassVar[bool] = False
    maybe_tensor_value: ClassVar[None] = None
    mlir_type_asm: ClassVar[str] = "i64"
    spec_key: ClassVar[str] = "int<None>"


@dataclass
class AttrArg:
    """A value that code is specialized for."""

    v: Any
    ir_arity: ClassVar[int] = 0
    is_list: ClassVar[bool] = False
    maybe_tensor_value: ClassVar[None] = None

    @property
    def spec_key(self) -> str:
        """Equal for calls that share code."""
        return f"attr<{self.v}>"


@dataclass
class EmptyOptionalTensorArg:
    """An optional tensor that is None. It is falsy; a `TensorArg` is truthy."""

    ir_arity: ClassVar[int] = 0
    is_list: ClassVar[bool] = False
    maybe_tensor_value: ClassVar[None] = None
    spec_key: ClassVar[str] = "tensor<None>"

    def __bool__(self) -> Literal[False]:
        return False


ArgDescriptor: TypeAlias = TensorArg | TensorListArg | IntArg | AttrArg | EmptyOptionalTensorArg


def _require_static(tensor: torch.Tensor, axis: int) -> int:
    try:
        return int(tensor.size(axis))
    except GuardOnDataDependentSymNode as error:
        raise errors.CustomOpError(
            f"the size along axis {axis} of a tensor of {list(tensor.shape)} is specialized, "
            "and known only at run time",
            hint="give the program a static size there",
        ) from error


def _type(tensor: torch.Tensor, sizes: Sizes) -> str:
    dims = "".join(f"{'?' if size is None else size}x" for size in sizes)
    return f"tensor<{dims}{dtypes.of_torch(tensor.dtype).mlir}>"
