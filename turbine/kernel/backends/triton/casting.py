"""Conversions between dtypes.

Floats of 8 bits are converted by their bits, which are shifted to where f32 has them, and back:
instructions of GPUs round overflow to the largest number, where PyTorch may have nan or infinity.
Of these dtypes, NVIDIA GPUs have f8e4m3fn and f8e5m2; tiles of the other two are bytes.
"""

from __future__ import annotations

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.float8 import FORMATS, overflow_bits
from turbine.kernel.backends.triton import elements
from turbine.kernel.backends.triton.emitter import Emitter, Value, rule, tight
from turbine.kernel.lang import casting
from turbine.kernel.trace.op import arguments
from turbine.kernel.trace.types import F32, I64

# The numbers of a format are those of f32 with a smaller exponent: scaled, its bits are f32's.
_FROM_FLOAT8 = """\
def from_float8(x, shift, scale, special, nan):
    code = x.to(tl.uint8, bitcast=True).to(tl.int32)
    size = code & 0x7F
    number = (size << shift).to(tl.float32, bitcast=True) * scale
    number = tl.where(size >= special, float("inf"), number)
    number = tl.where(code >= 0x80, -number, number)
    return tl.where((code == nan) | (size > special) | (size == nan), float("nan"), number)
"""
_TO_FLOAT8 = """\
def to_float8(x, shift, bias, least, step, special, overflow, nan, signs):
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    normal = ((bits + ((bits >> shift) & 1) + ((1 << (shift - 1)) - 1)) >> shift) - bias
    # Adding a power of two rounds small numbers to multiples of its last bit.
    small = (tl.abs(x) + step).to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(bits < least, small, normal)
    code = tl.where(code >= special, overflow, code)
    is_negative = (x.to(tl.int32, bitcast=True) < 0) & (code + signs > 0)
    code = tl.where(is_negative, code | 0x80, code)
    return tl.where(bits > 0x7F800000, nan, code).to(tl.uint8)
"""


def convert(emitter: Emitter, text: str, of: Dtype, to: Dtype) -> str:
    """Code of one dtype as code of another."""
    if of == to:
        return text
    if of in FORMATS:
        text, of = _from_float8(emitter, text, of), F32
    if of == to:
        return text
    if to.kind == "bool":
        return f"{tight(text)} != 0"
    if to not in FORMATS:
        return f"{tight(text)}.to({emitter.type(to)})"
    wide = text if of == F32 else f"{tight(text)}.to(tl.float32)"
    return _to_float8(emitter, wide, to)


def _from_float8(emitter: Emitter, text: str, dtype: Dtype) -> str:
    form = FORMATS[dtype]
    scale = 2.0 ** (127 - form.bias)
    # Bits after the infinity are nan; without one, no bits are after the special ones.
    special = form.first_special if form.first_special < form.nan else 0x80
    function = emitter.call("from_float8", _FROM_FLOAT8)
    return f"{function}({text}, {form.shift}, {scale}, {special}, {form.nan})"


def _to_float8(emitter: Emitter, text: str, dtype: Dtype) -> str:
    form = FORMATS[dtype]
    bias = form.bias_difference >> form.shift
    step = 2.0 ** (1 - form.bias - form.mantissa + 23)
    numbers = (
        *(form.shift, bias, form.least_normal, step),
        *(form.first_special, overflow_bits(dtype), form.nan, int(form.is_signed)),
    )
    function = emitter.call("to_float8", _TO_FLOAT8)
    code = f"{function}({text}, {', '.join(map(str, numbers))})"
    name = elements.TYPES[dtype.name]
    return code if name == "tl.uint8" else f"{code}.to({name}, bitcast=True)"


def converted(emitter: Emitter, value: Value, dtype: Dtype) -> Value:
    """A tile in another dtype, and a constant as a scalar."""
    if value.number is not None:
        value = Value(emitter.scalar(value), (), value.dtype, zero_unless=value.zero_unless)
    text = convert(emitter, value.text, value.dtype, dtype)
    most = value.most if dtype == I64 else None
    return Value(text, value.axes, dtype, most=most, zero_unless=value.zero_unless)


@rule(casting.to_dtype)
def _to_dtype(emitter: Emitter, node: fx.Node) -> Value:
    operand, dtype = arguments(node)
    value = emitter.value(operand)
    if value.is_narrow and dtype.name == "int32":
        return Value(value.text, value.axes, dtype, zero_unless=value.zero_unless)
    return emitter.assign("cast", converted(emitter, value, dtype))


@rule(casting.bitcast)
def _bitcast(emitter: Emitter, node: fx.Node) -> Value:
    operand, dtype = arguments(node)
    value = emitter.value(operand)
    text = emitter.scalar(value) if value.number is not None else emitter.operand(value, value.axes)
    if elements.TYPES[value.dtype.name] != elements.TYPES[dtype.name]:
        text = f"{tight(text)}.to({emitter.type(dtype)}, bitcast=True)"
    return emitter.assign("bitcast", Value(text, value.axes, dtype))
