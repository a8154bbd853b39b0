"""The types of an element in memory and in arithmetic.

Floats of 16 and 8 bits are computed in f32 and rounded after every op, as torch does.
"""

from __future__ import annotations

import torch

from turbine.dtypes import Dtype
from turbine.kernel.backends.iree.math import small_floats
from turbine.kernel.trace.types import DTYPES
from turbine.mlir.writer import Value, Writer, vector_type

BF16, F16 = DTYPES["bf16"], DTYPES["f16"]


def carrier(dtype: Dtype) -> str:
    """The MLIR type of an element in arithmetic."""
    return "f32" if dtype.kind == "float" and dtype.bits < 32 else dtype.mlir


def storage_type(dtype: Dtype) -> str:
    """The MLIR type of an element in memory."""
    if dtype.kind == "bool":
        return "i8"
    if dtype == F16:
        return "f16"
    return f"i{dtype.bits}" if dtype.kind == "float" and dtype.bits < 32 else dtype.mlir


def from_storage(w: Writer, raw: Value, dtype: Dtype) -> Value:
    """Convert a loaded value for arithmetic."""
    if dtype.kind == "bool":
        return w.compare("arith.cmpi", "ne", raw, w.constant(0, "i8", raw.lanes))
    if dtype == F16:
        return w.convert("arith.extf", raw, "f32")
    if dtype == BF16:
        return _widen_bf16(w, raw)
    if storage_type(dtype) == carrier(dtype):
        return raw
    return small_floats.widen(w, raw, dtype)


def to_store(w: Writer, value: Value, dtype: Dtype) -> Value:
    """Convert a computed value for memory."""
    if dtype.kind == "bool":
        return w.convert("arith.extui", value, "i8")
    if dtype == F16:
        # The rounding mode keeps LLVM from computing the previous op in f16, where CPUs are set
        # to flush subnormal numbers to zero.
        text = f"arith.truncf {value} to_nearest_even : {value.type}"
        return w.emit(f"{text} to {vector_type('f16', value.lanes)}", "f16", value.lanes)
    if dtype == BF16:
        return _round_to_bf16(w, value)
    if storage_type(dtype) == carrier(dtype):
        return value
    return small_floats.narrow(w, value, dtype)


def round_to(w: Writer, value: Value, dtype: Dtype) -> Value:
    """Round a value to its dtype."""
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
    """Wrap an integer to a signed one of `bits` bits."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _widen_bf16(w: Writer, raw: Value) -> Value:
    wide = w.convert("arith.extui", raw, "i32")
    shifted = w.binary("arith.shli", wide, w.constant(16, "i32", raw.lanes))
    return w.convert("arith.bitcast", shifted, "f32")


def _round_to_bf16(w: Writer, value: Value) -> Value:
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
