"""How elements are held: a number in memory, and the same number while it is computed with.

Floats of 16 and 8 bits are computed with as f32, and rounded after every op as torch does.
"""

from __future__ import annotations

import torch

from turbine.dtypes import Dtype
from turbine.kernel.backends.iree.math import small_floats
from turbine.kernel.trace.types import DTYPES
from turbine.mlir.writer import Value, Writer, vector_type

BF16, F16 = DTYPES["bf16"], DTYPES["f16"]


def carrier(dtype: Dtype) -> str:
    """The MLIR type that elements have while they are computed with."""
    return "f32" if dtype.kind == "float" and dtype.bits < 32 else dtype.mlir


def storage_type(dtype: Dtype) -> str:
    """The MLIR type that elements have in memory."""
    if dtype.kind == "bool":
        return "i8"
    if dtype == F16:
        return "f16"
    return f"i{dtype.bits}" if dtype.kind == "float" and dtype.bits < 32 else dtype.mlir


def from_storage(w: Writer, raw: Value, dtype: Dtype) -> Value:
    """What was read from memory, to compute with."""
    if dtype.kind == "bool":
        return w.compare("arith.cmpi", "ne", raw, w.constant(0, "i8", raw.lanes))
    if dtype == F16:
        return w.convert("arith.extf", raw, "f32")
    if dtype == BF16:
        return _bf16_widened(w, raw)
    if storage_type(dtype) == carrier(dtype):
        return raw
    return small_floats.widen(w, raw, dtype)


def to_store(w: Writer, value: Value, dtype: Dtype) -> Value:
    """What was computed, as memory holds it."""
    if dtype.kind == "bool":
        return w.convert("arith.extui", value, "i8")
    if dtype == F16:
        # With a rounding mode LLVM leaves the op before it in f32: CPUs that compute in f16 are
        # set to flush its small numbers to zero.
        text = f"arith.truncf {value} to_nearest_even : {value.type}"
        return w.emit(f"{text} to {vector_type('f16', value.lanes)}", "f16", value.lanes)
    if dtype == BF16:
        return _bf16_narrowed(w, value)
    if storage_type(dtype) == carrier(dtype):
        return value
    return small_floats.narrow(w, value, dtype)


def round_to(w: Writer, value: Value, dtype: Dtype) -> Value:
    """A number as near as its type has one."""
    if storage_type(dtype) == carrier(dtype) or dtype.kind != "float":
        return value
    return from_storage(w, to_store(w, value, dtype), dtype)


def number(w: Writer, value: bool | int | float, dtype: Dtype, lanes: int = 0) -> Value:
    """A constant."""
    if dtype.kind == "float":
        value = float(torch.tensor(float(value), dtype=torch.float64).to(dtype.torch))
    elif dtype.kind != "bool":
        value = _wrap(int(value), dtype.bits)
    return w.constant(value, carrier(dtype), lanes)


def _wrap(value: int, bits: int) -> int:
    """An integer as a signed one of so many bits."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _bf16_widened(w: Writer, raw: Value) -> Value:
    wide = w.convert("arith.extui", raw, "i32")
    shifted = w.binary("arith.shli", wide, w.constant(16, "i32", raw.lanes))
    return w.convert("arith.bitcast", shifted, "f32")


def _bf16_narrowed(w: Writer, value: Value) -> Value:
    lanes = value.lanes
    bits = w.convert("arith.bitcast", value, "i32")
    sixteen = w.constant(16, "i32", lanes)
    odd = w.binary(
        "arith.andi", w.binary("arith.shrui", bits, sixteen), w.constant(1, "i32", lanes)
    )
    half = w.binary("arith.addi", odd, w.constant(0x7FFF, "i32", lanes))
    even = w.binary("arith.shrui", w.binary("arith.addi", bits, half), sixteen)
    is_nan = w.compare("arith.cmpf", "uno", value, value)
    chosen = w.select(is_nan, w.constant(0x7FC0, "i32", lanes), even)
    return w.convert("arith.trunci", chosen, "i16")
