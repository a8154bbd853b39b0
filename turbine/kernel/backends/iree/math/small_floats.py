"""Convert 8-bit floats to f32 and back with integer ops; round to nearest even, as torch does.

Overflow becomes inf, nan or the largest number, as torch has it for the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbine.dtypes import Dtype
from turbine.kernel.backends.float8 import FORMATS, overflow_bits
from turbine.mlir.writer import Value, Writer


@dataclass(frozen=True)
class _Bits:
    """Arithmetic on i32 with Python constants."""

    w: Writer
    lanes: int

    def number(self, bits: int) -> Value:
        return self.w.constant(bits - (1 << 32) if bits >= 1 << 31 else bits, "i32", self.lanes)

    def op(self, name: str, x: Value, bits: int) -> Value:
        return self.w.binary(f"arith.{name}", x, self.number(bits))

    def holds(self, predicate: str, x: Value, bits: int) -> Value:
        return self.w.compare("arith.cmpi", predicate, x, self.number(bits))

    def as_float(self, x: Value) -> Value:
        return self.w.convert("arith.bitcast", x, "f32")

    def of_float(self, x: Value) -> Value:
        return self.w.convert("arith.bitcast", x, "i32")


def widen(w: Writer, raw: Value, dtype: Dtype) -> Value:
    """Convert an 8-bit float to f32."""
    form, bits = FORMATS[dtype], _Bits(w, raw.lanes)
    wide = w.convert("arith.extui", raw, "i32")
    rest = bits.op("andi", wide, 0x7F)
    normal = bits.op("addi", bits.op("shli", rest, form.shift), form.bias_difference)
    # Subnormal numbers are multiples of a power of two.
    step = w.constant(2.0 ** (1 - form.bias - form.mantissa), "f32", raw.lanes)
    tiny = w.binary("arith.mulf", w.convert("arith.sitofp", rest, "f32"), step)
    is_tiny = bits.holds("ult", rest, 1 << form.mantissa)
    size = w.select(is_tiny, bits.of_float(tiny), normal)
    if form.is_signed:
        special = bits.op("ori", size, 0x7F800000)
        size = w.select(bits.holds("uge", rest, form.first_special), special, size)
    else:
        size = w.select(bits.holds("eq", wide, form.nan), bits.number(0x7FC00000), size)
    sign = bits.op("shli", bits.op("andi", wide, 0x80), 24)
    return bits.as_float(w.binary("arith.ori", size, sign))


def narrow(w: Writer, value: Value, dtype: Dtype) -> Value:
    """Round an f32 to an 8-bit float."""
    form, bits = FORMATS[dtype], _Bits(w, value.lanes)
    all_bits = bits.of_float(value)
    size = bits.op("andi", all_bits, 0x7FFFFFFF)
    odd = bits.op("andi", bits.op("shrui", size, form.shift), 1)
    half = (1 << (form.shift - 1)) - 1 - form.bias_difference
    raised = w.binary("arith.addi", bits.op("addi", size, half & 0xFFFFFFFF), odd)
    normal = bits.op("shrui", raised, form.shift)
    # A number whose last bit has the value of the smallest 8-bit float: adding it rounds.
    magic = (151 - form.bias - form.mantissa) << 23
    summed = w.binary("arith.addf", bits.as_float(size), bits.as_float(bits.number(magic)))
    tiny = bits.op("subi", bits.of_float(summed), magic)
    found = w.select(bits.holds("ult", size, form.least_normal), tiny, normal)
    most = overflow_bits(dtype)
    found = w.select(bits.holds("uge", size, form.limit), bits.number(most), found)
    found = bits.op("minui", found, most)  # rounding up may overflow too
    found = w.select(bits.holds("ugt", size, 0x7F800000), bits.number(form.nan), found)
    sign = bits.op("shrui", bits.op("andi", all_bits, 0x80000000), 24)
    signed = w.binary("arith.ori", found, sign)
    if not form.is_signed:
        signed = w.select(bits.holds("eq", found, 0), found, signed)
    return w.convert("arith.trunci", signed, "i8")
