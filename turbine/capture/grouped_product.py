"""Weights packed as 4- or 8-bit integers with a scale for each group, and the ops that use them.

The ops unpack the weight in eager mode; compiled code uses it packed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from turbine import packed_weights
from turbine.packed_weights import Grouping


@dataclass(frozen=True)
class Packed:
    """A weight of [outputs, columns] in groups along the columns: Note [Packed groups].

    Scales are float16, whose range is small; `factor`, a power of two, extends it.
    """

    values: Tensor  # int8 [outputs, groups, bytes]
    scales: Tensor  # float16 [outputs, groups]
    factor: float  # multiplies all scales
    columns: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes

    @property
    def arguments(self) -> tuple[Tensor, Tensor, float, int, int]:
        """The arguments of the ops below that describe a weight."""
        return self.values, self.scales, self.factor, self.columns, self.bits

    def unpacked(self) -> Tensor:
        """The weight in float32."""
        return unpack(*self.arguments)


def pack(weight: Tensor, bits: int, group_size: int) -> Packed:
    """Round a weight of [outputs, columns] to groups of integers."""
    outputs, columns = weight.shape
    matrix = weight.detach().float().cpu().numpy()
    factor = _power_of_two(float(numpy.abs(matrix).max()))
    grouping = Grouping.fit(outputs, columns, bits, group_size)
    parts = packed_weights.quantize(matrix / factor, grouping, numpy.dtype(numpy.float16))
    values, scales = (torch.from_numpy(part).to(weight.device) for part in parts)
    return Packed(values, scales, factor, columns, bits)


def _power_of_two(largest: float) -> float:
    """The power of two at or below a magnitude."""
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0


def unpack(values: Tensor, scales: Tensor, factor: float, columns: int, bits: int) -> Tensor:
    """Rows of a weight in float32."""
    integers = _from_bytes(values, bits).float()
    weight = integers * (scales.float() * factor).unsqueeze(-1)
    return weight.flatten(-2)[..., :columns]


@torch.library.custom_op("turbine::grouped_product", mutates_args=())
def grouped_product(
    x: Tensor, values: Tensor, scales: Tensor, factor: float, columns: int, bits: int
) -> Tensor:
    """x, float32 [rows, columns], times a packed weight: [rows, outputs]."""
    return x @ unpack(values, scales, factor, columns, bits).t()


@grouped_product.register_fake
def _(x: Tensor, values: Tensor, scales: Tensor, factor: float, columns: int, bits: int) -> Tensor:
    return x.new_empty(x.shape[0], values.shape[0])


@torch.library.custom_op("turbine::grouped_rows", mutates_args=())
def grouped_rows(
    indices: Tensor, values: Tensor, scales: Tensor, factor: float, columns: int, bits: int
) -> Tensor:
    """Rows of a packed weight in float32, for embeddings."""
    return unpack(values[indices], scales[indices], factor, columns, bits).clone()


@grouped_rows.register_fake
def _(
    indices: Tensor, values: Tensor, scales: Tensor, factor: float, columns: int, bits: int
) -> Tensor:
    return scales.new_empty((*indices.shape, columns), dtype=torch.float32)


# The overloads that graphs contain.
GROUPED_PRODUCT = torch.ops.turbine.grouped_product.default
GROUPED_ROWS = torch.ops.turbine.grouped_rows.default


def _from_bytes(values: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return values
    return torch.cat([(values << 4) >> 4, values >> 4], dim=-1)
