"""THE dtype table: one row per element type, everything else about dtypes derives from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Union

from turbine import errors

if TYPE_CHECKING:
    import numpy
    import torch


@dataclass(frozen=True)
class Dtype:
    """One element type under all its names. `hal` is IREE's element type code."""

    name: str
    mlir: str
    torch_mlir: str
    hal: int
    bits: int
    kind: str  # "bool", "int", "uint", "float" or "complex"
    dlpack: bool = True  # fp8 has no DLPack code in IREE and travels as bytes

    def __or__(self, other: None) -> Any:
        """The annotation of an optional scalar, `tkl.f32 | None`."""
        return Union[self, other]  # noqa: UP007  # these are not Python types

    @property
    def itemsize(self) -> int:
        """Bytes one element takes in memory."""
        return max(self.bits // 8, 1)

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype of this row."""
        return _torch_dtypes()[self.name]

    @property
    def numpy(self) -> numpy.dtype[Any]:
        """The numpy (or ml_dtypes) dtype of this row."""
        return _numpy_dtypes()[self.name]


TABLE = (
    Dtype("bool", "i1", "i1", 0x13000008, 1, "bool"),
    Dtype("int8", "i8", "si8", 0x11000008, 8, "int"),
    Dtype("int16", "i16", "si16", 0x11000010, 16, "int"),
    Dtype("int32", "i32", "si32", 0x11000020, 32, "int"),
    Dtype("int64", "i64", "si64", 0x11000040, 64, "int"),
    Dtype("uint8", "i8", "ui8", 0x12000008, 8, "uint"),
    Dtype("uint16", "i16", "ui16", 0x12000010, 16, "uint"),
    Dtype("uint32", "i32", "ui32", 0x12000020, 32, "uint"),
    Dtype("uint64", "i64", "ui64", 0x12000040, 64, "uint"),
    Dtype("float16", "f16", "f16", 0x21000010, 16, "float"),
    Dtype("bfloat16", "bf16", "bf16", 0x22000010, 16, "float"),
    Dtype("float32", "f32", "f32", 0x21000020, 32, "float"),
    Dtype("float64", "f64", "f64", 0x21000040, 64, "float"),
    Dtype("float8_e5m2", "f8E5M2", "f8E5M2", 0x24000008, 8, "float", False),
    Dtype("float8_e4m3fn", "f8E4M3FN", "f8E4M3FN", 0x25000008, 8, "float", False),
    Dtype("float8_e5m2fnuz", "f8E5M2FNUZ", "f8E5M2FNUZ", 0x26000008, 8, "float", False),
    Dtype("float8_e4m3fnuz", "f8E4M3FNUZ", "f8E4M3FNUZ", 0x27000008, 8, "float", False),
    Dtype("float8_e8m0fnu", "f8E8M0FNU", "f8E8M0FNU", 0x28000008, 8, "float", False),
    Dtype("complex64", "complex<f32>", "complex<f32>", 0x23000040, 64, "complex"),
    Dtype("complex128", "complex<f64>", "complex<f64>", 0x23000080, 128, "complex"),
)
BY_NAME = {row.name: row for row in TABLE}


@dataclass(frozen=True)
class Scalar:
    """A scalar type of arguments, results and state; `python` is the type a caller sees."""

    name: str
    mlir: str
    bits: int
    python: type

    def holds(self, number: bool | int | float) -> bool:
        """Whether a Python number fits this type, up to rounding."""
        if self.python is not float:
            return -(2 ** (self.bits - 1)) <= number < 2 ** (self.bits - 1) or self.python is bool
        # From this limit on, a number rounds to infinity.
        return abs(number) < _FLOAT_LIMITS[self.bits] or number != number or abs(number) == math.inf


_FLOAT_LIMITS = {32: 2**128 - 2**103, 64: 2**1024 - 2**970}


# In the order of type promotion: the result of two numbers has the later type.
SCALARS = {
    row.name: row
    for row in (
        Scalar("bool", "i1", 1, bool),
        Scalar("int32", "i32", 32, int),
        Scalar("index", "index", 64, int),
        Scalar("int64", "i64", 64, int),
        Scalar("float32", "f32", 32, float),
        Scalar("float64", "f64", 64, float),
    )
}
# Short spellings for the command line: f32, bf16, si64, ui8; a plain i8 is signed.
BY_SPELLING = {
    **{row.mlir: row for row in reversed(TABLE)},
    **{row.torch_mlir: row for row in TABLE},
    **BY_NAME,
}


def from_torch_name(name: str) -> Dtype:
    """The row of a dtype by its torch name, such as "float32"."""
    if name not in BY_NAME:
        raise errors.UnsupportedDtype(errors.unknown("dtype", name, BY_NAME))
    return BY_NAME[name]


def from_spelling(text: str) -> Dtype:
    """The row a user means by "float32", "f32", "i64" or "ui8"."""
    if text not in BY_SPELLING:
        raise errors.UnsupportedDtype(errors.unknown("dtype", text, BY_SPELLING))
    return BY_SPELLING[text]


def of_torch(dtype: torch.dtype) -> Dtype:
    """The row of a torch dtype."""
    return from_torch_name(str(dtype).removeprefix("torch."))


def of_numpy(dtype: numpy.dtype[Any]) -> Dtype:
    """The row of a numpy or ml_dtypes dtype."""
    return from_torch_name(dtype.name)


@cache
def _torch_dtypes() -> dict[str, torch.dtype]:
    import torch

    return {name: vars(torch)[name] for name in BY_NAME}


@cache
def _numpy_dtypes() -> dict[str, numpy.dtype[Any]]:
    import ml_dtypes
    import numpy

    extended = vars(ml_dtypes)
    return {name: numpy.dtype(extended.get(name, name)) for name in BY_NAME}
