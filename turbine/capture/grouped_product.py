"""Weights as integers of 4 or 8 bits with a scale for each group, and the ops that use them.

They are ordinary PyTorch ops: in eager mode they unpack the weight, compiled they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from turbine import errors

# What the weight of largest magnitude in a group may become; the one that serves the group best
# is taken. Signed, since the integers reach one further below zero than above.
_EXTREMES = {4: (-8.0, -8.5, -7.5, -9.0, 7.5, 8.5, 9.5), 8: (-128.0, 127.0)}
BITS = tuple(_EXTREMES)
# Scales are float16, whose range is small; one power of two for the whole weight widens it.
_SCALE = torch.float16


@dataclass(frozen=True)
class Packed:
    """A weight of [outputs, columns] in groups along the columns."""

    values: Tensor  # int8 [outputs, groups, bytes]
    scales: Tensor  # float16 [outputs, groups]
    factor: float  # of all scales
    columns: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.values.nbytes + self.scales.nbytes

    def unpacked(self) -> Tensor:
        """The weight in float32."""
        return unpack(self.values, self.scales, self.factor, self.columns, self.bits)


def check(bits: int, group_size: int) -> None:
    """Refuse what no weight can be packed in."""
    if bits not in BITS:
        raise errors.ConfigError(f"cannot quantize to {bits=}", hint="use 4 or 8")
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
        raise errors.ConfigError(
            f"cannot make groups of {group_size=}", hint="use a whole number, such as 32 or 128"
        )


def pack(weight: Tensor, bits: int, group_size: int) -> Packed:
    """Round a weight of [outputs, columns] to groups of integers."""
    outputs, columns = weight.shape
    # Two weights share a byte, so a group of 4 bits has an even size.
    size = min(group_size, columns)
    size += size % 2 if bits == 4 else 0
    wide = functional.pad(weight.detach().float(), (0, -columns % size))
    groups = wide.reshape(outputs, -1, size)
    factor = _factor(groups)
    scales = _scales(groups / factor, bits)
    integers = _integers(groups / factor, scales, bits)
    return Packed(_in_bytes(integers, bits), scales, factor, columns, bits)


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
    """Rows of a packed weight, float32: what an embedding looks up."""
    return unpack(values[indices], scales[indices], factor, columns, bits).clone()


@grouped_rows.register_fake
def _(
    indices: Tensor, values: Tensor, scales: Tensor, factor: float, columns: int, bits: int
) -> Tensor:
    return scales.new_empty((*indices.shape, columns), dtype=torch.float32)


# The ops as they stand in graphs.
GROUPED_PRODUCT = torch.ops.turbine.grouped_product.default
GROUPED_ROWS = torch.ops.turbine.grouped_rows.default


def _factor(groups: Tensor) -> float:
    """The power of two near the largest magnitude."""
    largest = groups.abs().max().item() if groups.numel() else 0.0
    return float(2.0 ** torch.tensor(largest).log2().ceil()) if largest > 0 else 1.0


def _scales(groups: Tensor, bits: int) -> Tensor:
    """For each group the scale, of those considered, with the least squared error."""
    place = groups.abs().argmax(dim=-1, keepdim=True)
    extreme = groups.gather(-1, place).squeeze(-1)
    best = torch.zeros_like(extreme, dtype=_SCALE)
    least = torch.full_like(extreme, torch.inf)
    for reached in _EXTREMES[bits]:
        scales = (extreme / reached).to(_SCALE)
        error = (_integers(groups, scales, bits) * scales.float().unsqueeze(-1) - groups).square()
        total = error.sum(dim=-1)
        best, least = torch.where(total < least, scales, best), torch.minimum(total, least)
    return best


def _integers(groups: Tensor, scales: Tensor, bits: int) -> Tensor:
    divisors = scales.float().unsqueeze(-1)
    divisors = torch.where(divisors == 0, 1.0, divisors)
    limit = 2 ** (bits - 1)
    return (groups / divisors).round().clamp(-limit, limit - 1).to(torch.int8)


def _in_bytes(integers: Tensor, bits: int) -> Tensor:
    """The first half of a group goes to the low halves of its bytes, the second to the high."""
    if bits == 8:
        return integers
    low, high = integers.chunk(2, dim=-1)
    return (low & 15) | (high << 4)


def _from_bytes(values: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return values
    return torch.cat([(values << 4) >> 4, values >> 4], dim=-1)
