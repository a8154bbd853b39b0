"""What a kernel's values are: element types, buffers with symbolic sizes, and tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from turbine import dtypes, errors
from turbine.algebra import Expr
from turbine.dtypes import Dtype
from turbine.kernel.trace.user_code import user_line


@dataclass(frozen=True)
class DtypeSymbol:
    """An element type that is known when tensors are passed."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class UnsupportedType:
    """An element type that iree-turbine has a name for, and kernels do not compute with."""

    name: str

    def __repr__(self) -> str:
        return f"tkl.{self.name}"


ElementType = Dtype | DtypeSymbol
# Short names, as kernels have them. `index` is what sizes are computed in.
NAMES = {
    "bool": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "index": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e4m3fnuz": "float8_e4m3fnuz",
}
DTYPES: dict[str, Dtype] = {short: dtypes.from_torch_name(name) for short, name in NAMES.items()}
_SHORT = {row: short for short, row in reversed(DTYPES.items()) if short != "index"}
BOOL, I32, I64, F32 = (DTYPES[name] for name in ("bool", "i32", "i64", "f32"))


def axes_text(count: int) -> str:
    """How many axes: "1 axis", "2 axes"."""
    return "1 axis" if count == 1 else f"{count} axes"


def dtype_name(dtype: ElementType) -> str:
    """As kernels spell it."""
    return dtype.name if isinstance(dtype, DtypeSymbol) else _SHORT[dtype]


def fits(number: bool | int | float, dtype: Dtype) -> bool:
    """Whether a type has a number of Python's, but for rounding; bits of u8 may be named by -2."""
    if dtype.kind in ("bool", "float"):
        return isinstance(number, float) or abs(number) < 2**1023
    is_signed = dtype.kind == "int"
    last: int = 2 ** (dtype.bits - is_signed) - 1
    return -last - is_signed <= number <= last


def tensor_of(number: bool | int | float, dtype: Dtype) -> torch.Tensor:
    """A number that `fits` as a tensor without axes."""
    if dtype.kind == "float":
        return torch.tensor(float(number), dtype=torch.float64).to(dtype.torch)
    return torch.full((), int(number), dtype=dtype.torch)


@dataclass(frozen=True)
class TileType:
    """A block of elements that a program computes with; without axes, a single number."""

    shape: tuple[Expr, ...]
    dtype: Dtype

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def of(self, dtype: Dtype) -> TileType:
        """The same block of other elements."""
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        return f"[{', '.join([*map(str, self.shape), dtype_name(self.dtype)])}]"


@dataclass(frozen=True)
class BufferType:
    """A tensor that a kernel is given or makes; `usage` says which."""

    usage: str  # "input", "output", "inout" or "temporary"
    shape: tuple[Expr, ...]
    dtype: ElementType
    fill: int | float | None = None  # what an output holds before the kernel runs

    def filled(self, value: int | float) -> BufferType:
        """An output that holds a number wherever the kernel has not written yet."""
        if self.usage != "output":
            raise errors.KernelError(
                f"{self} is filled, which only an OutputBuffer can be",
                where=user_line(),
                hint="an InOutBuffer holds what the caller passes",
            )
        return replace(self, fill=value)

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def __or__(self, other: Any) -> OptionalType:
        if other is not None:
            return NotImplemented
        return OptionalType(self)

    def __str__(self) -> str:
        return f"{USAGES[self.usage]}[{', '.join([*map(str, self.shape), dtype_name(self.dtype)])}]"


USAGES = {
    "input": "InputBuffer",
    "output": "OutputBuffer",
    "inout": "InOutBuffer",
    "temporary": "TemporaryBuffer",
}


@dataclass(frozen=True)
class ScalarType:
    """A number that is passed to a kernel."""

    dtype: Dtype

    def __str__(self) -> str:
        return dtype_name(self.dtype)


@dataclass(frozen=True)
class OptionalType:
    """An argument that may be None."""

    of: BufferType | ScalarType

    def __str__(self) -> str:
        return f"{self.of} | None"


ParameterType = BufferType | ScalarType | OptionalType
