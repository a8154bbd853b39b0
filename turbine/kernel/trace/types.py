"""Types of a kernel: dtypes, buffers with symbolic sizes, tiles and scalars."""

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
    """A dtype that is inferred from the arguments of a call."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class UnsupportedType:
    """A dtype that iree-turbine has and kernels do not support."""

    name: str

    def __repr__(self) -> str:
        return f"tkl.{self.name}"


ElementType = Dtype | DtypeSymbol
# Short names of dtypes in kernels. `index` is the dtype of sizes.
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
    """Format a number of axes: "1 axis", "2 axes"."""
    return "1 axis" if count == 1 else f"{count} axes"


def dtype_name(dtype: ElementType) -> str:
    """The short name of a dtype."""
    return dtype.name if isinstance(dtype, DtypeSymbol) else _SHORT[dtype]


def fits(number: bool | int | float, dtype: Dtype) -> bool:
    """Whether a Python number is in the range of a dtype; u8 takes -2 for its bits."""
    if dtype.kind in ("bool", "float"):
        return isinstance(number, float) or abs(number) < 2**1023
    is_signed = dtype.kind == "int"
    last: int = 2 ** (dtype.bits - is_signed) - 1
    return -last - is_signed <= number <= last


def tensor_of(number: bool | int | float, dtype: Dtype) -> torch.Tensor:
    """Convert a number that `fits` to a 0-d tensor."""
    if dtype.kind == "float":
        return torch.tensor(float(number), dtype=torch.float64).to(dtype.torch)
    return torch.full((), int(number), dtype=dtype.torch)


@dataclass(frozen=True)
class TileType:
    """The type of a tile; a scalar has no axes."""

    shape: tuple[Expr, ...]
    dtype: Dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def of(self, dtype: Dtype) -> TileType:
        """The same shape with another dtype."""
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        return f"[{', '.join([*map(str, self.shape), dtype_name(self.dtype)])}]"


@dataclass(frozen=True)
class BufferType:
    """The type of a tensor argument; `usage` says how it is used."""

    usage: str  # "input", "output", "inout" or "temporary"
    shape: tuple[Expr, ...]
    dtype: ElementType
    fill: int | float | None = None  # the initial value of an output

    def filled(self, value: int | float) -> BufferType:
        """An output that is initialized with a number."""
        if self.usage != "output":
            raise errors.KernelError(
                f"cannot fill {self}: only an OutputBuffer can be filled",
                where=user_line(),
                hint="an InOutBuffer has the values of the caller's tensor",
            )
        return replace(self, fill=value)

    @property
    def rank(self) -> int:
        """The number of axes."""
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
    """The type of a scalar argument."""

    dtype: Dtype

    def __str__(self) -> str:
        return dtype_name(self.dtype)


@dataclass(frozen=True)
class OptionalType:
    """The type of an argument that may be None."""

    of: BufferType | ScalarType

    def __str__(self) -> str:
        return f"{self.of} | None"


ParameterType = BufferType | ScalarType | OptionalType
