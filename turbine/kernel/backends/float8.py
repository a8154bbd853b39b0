"""The formats of 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from turbine.dtypes import Dtype
from turbine.kernel.trace.types import DTYPES


@dataclass(frozen=True)
class Format:
    """An 8-bit float format: bits of the mantissa, bias of the exponent, and special values."""

    mantissa: int
    bias: int
    nan: int
    first_special: int  # the first bits, without the sign, that are inf or nan
    is_signed: bool = True  # whether zero and nan have a sign

    @property
    def shift(self) -> int:
        """The distance of its exponent from that of f32, in bits."""
        return 23 - self.mantissa

    @property
    def bias_difference(self) -> int:
        """The difference of the biases, as bits of an f32."""
        return (127 - self.bias) << 23

    @property
    def least_normal(self) -> int:
        """The smallest normal number, as bits of an f32."""
        return (128 - self.bias) << 23

    @property
    def limit(self) -> int:
        """The first f32 that overflows however it is rounded, as bits."""
        last = self.first_special << self.shift
        return last + self.bias_difference


FORMATS = {
    DTYPES["f8e5m2"]: Format(2, 15, nan=0x7F, first_special=0x7C),
    DTYPES["f8e4m3fn"]: Format(3, 7, nan=0x7F, first_special=0x7F),
    DTYPES["f8e5m2fnuz"]: Format(2, 16, nan=0x80, first_special=0x80, is_signed=False),
    DTYPES["f8e4m3fnuz"]: Format(3, 8, nan=0x80, first_special=0x80, is_signed=False),
}


@cache
def overflow_bits(dtype: Dtype) -> int:
    """The bits that overflow becomes: inf, nan or the largest number, as in torch."""
    return int(torch.tensor(float("inf")).to(dtype.torch).view(torch.uint8))
