"""Element types and numbers as Triton writes them."""

from __future__ import annotations

import math

import torch

from turbine.dtypes import Dtype
from turbine.kernel.trace.types import tensor_of

TYPES = {
    "bool": "tl.int1",
    "int8": "tl.int8",
    "int16": "tl.int16",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "uint8": "tl.uint8",
    "uint16": "tl.uint16",
    "uint32": "tl.uint32",
    "uint64": "tl.uint64",
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float64": "tl.float64",
    "float8_e5m2": "tl.float8e5",
    "float8_e4m3fn": "tl.float8e4nv",
    # These are computed from their bits: see `casting`.
    "float8_e5m2fnuz": "tl.uint8",
    "float8_e4m3fnuz": "tl.uint8",
}
# The types of arguments in a signature.
ARGUMENT_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e5m2": "fp8e5",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2fnuz": "u8",
    "float8_e4m3fnuz": "u8",
}


def is_small(dtype: Dtype) -> bool:
    """Whether floats of a dtype are computed in f32."""
    return dtype.kind == "float" and dtype.bits < 32


def literal(number: bool | int | float, dtype: Dtype) -> str:
    """A number of a dtype as an operand of an op on tiles of that dtype."""
    text = _text(number, dtype)
    # Triton rounds other literals to f32.
    return f"tl.full([], {text}, tl.float64)" if dtype.name == "float64" else text


def element(number: bool | int | float, dtype: Dtype) -> str:
    """A number as an element of a tile: its bits, where a dtype is computed from them."""
    if dtype.kind == "float" and TYPES[dtype.name] == "tl.uint8":
        return str(int(tensor_of(number, dtype).view(torch.uint8)))
    return _text(number, dtype)


def _text(number: bool | int | float, dtype: Dtype) -> str:
    if dtype.kind == "float":
        rounded = float(tensor_of(number, dtype).double())
        return repr(rounded) if math.isfinite(rounded) else f'float("{rounded}")'
    if dtype.kind == "bool":
        return str(bool(number))
    return str(int(number) % 2**dtype.bits if dtype.kind == "uint" else int(number))


def largest(dtype: Dtype) -> int:
    """The largest integer of a dtype."""
    return int(2 ** (dtype.bits - (dtype.kind == "int")) - 1)


def smallest(dtype: Dtype) -> int:
    """The smallest integer of a dtype."""
    return -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
