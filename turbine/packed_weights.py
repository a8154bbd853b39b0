"""Weights as integers of 4 or 8 bits with a scale per group: a matrix in, bytes and scales out.

Note [Packed groups]
A matmul is y = x @ w.T with w of shape [outputs, columns]. Each row of w is cut into groups of
`group_size` along the columns; the last group is padded with zeros, and a row shorter than a group
is one group. An element is q * scale with q a signed integer of `bits` bits. Two tensors replace a
weight named "key":

    key.packed  int8 [outputs, groups, group_size * bits / 8]
    key.scales  [outputs, groups]

With 4 bits two integers share a byte: the first half of a group lies in the low halves of its
bytes, the second half in the high ones.

Two matchers find weights and pack them here. They differ in what they see and what they emit:
- capture/quantization.py matches fx graphs (`aot.quantize`). It emits `turbine::grouped_product`,
  whose code multiplies without unpacking and reads float16 scales times one factor.
- passes/group_quantize.py matches any IR (`turbine opt`), whose values may be unknown and which has
  no target yet. It emits plain ops that unpack, with scales in the dtype of the weight.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from turbine import errors, tables

# The tensors that replace a weight, by the endings of their names.
PARTS = ("packed", "scales")
# By bits: candidates for the integer that the largest magnitude of a group is mapped to. Signed,
# since the integers reach one further below zero than above.
_EXTREMES = {4: (-8.0, -8.5, -7.5, -9.0, 7.5, 8.5, 9.5), 8: (-128.0, 127.0)}
BITS = tuple(_EXTREMES)
# Elements quantized at a time, so that they stay in a core's cache.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Grouping:
    """The sizes of a packed weight, which stands for a matrix of [outputs, columns]."""

    outputs: int
    columns: int
    bits: int
    group_size: int

    @classmethod
    def fit(cls, outputs: int, columns: int, bits: int, group_size: int) -> Grouping:
        """Groups of at most one row, and of even size for 4 bits."""
        size = min(group_size, columns)
        return cls(outputs, columns, bits, size + size % 2 if bits == 4 else size)

    @property
    def groups(self) -> int:
        """Groups in each row."""
        return -(-self.columns // self.group_size)

    @property
    def padded(self) -> int:
        """Columns of all groups."""
        return self.groups * self.group_size

    @property
    def group_bytes(self) -> int:
        """Bytes of the integers of a group."""
        return self.group_size * self.bits // 8

    @property
    def packed_shape(self) -> tuple[int, int, int]:
        """The shape of the packed integers, in bytes."""
        return self.outputs, self.groups, self.group_bytes

    @property
    def scales_shape(self) -> tuple[int, int]:
        """The shape of the scales."""
        return self.outputs, self.groups


@dataclass(frozen=True)
class Layer:
    """A packed weight; errors are differences between its values and the original ones."""

    name: str
    shape: tuple[int, ...]
    bits: int
    group_size: int
    bytes_before: int
    bytes_after: int
    max_error: float
    rms_error: float  # relative to the weight's own root mean square


@dataclass(frozen=True)
class Kept:
    """A weight that was not packed."""

    name: str
    nbytes: int
    why: str


@dataclass(frozen=True)
class QuantizationReport:
    """A report on each weight. `print` shows it as a table."""

    layers: tuple[Layer, ...]
    kept: tuple[Kept, ...]
    bytes_before: int  # of all weights
    bytes_after: int

    def __str__(self) -> str:
        head = ("weight", "shape", "bits", "before", "after", "max error", "rms error")
        total = ("total", "", "", _size(self.bytes_before), _size(self.bytes_after), "", "")
        rows = [head, *(_row(layer) for layer in self.layers), total]
        return "\n".join([tables.table(rows, right=(2, 3, 4, 5, 6)), *self._kept_lines()])

    def _kept_lines(self) -> list[str]:
        large = [k for k in self.kept if k.nbytes * 100 >= self.bytes_after]
        rest = [k for k in self.kept if k not in large]
        lines = [f"kept {k.name}, {_size(k.nbytes)}: {k.why}" for k in large]
        if rest:
            lines.append(f"kept {len(rest)} small ones, {_size(sum(k.nbytes for k in rest))}")
        return lines


def _row(layer: Layer) -> tuple[str, ...]:
    return (
        layer.name,
        "x".join(map(str, layer.shape)),
        str(layer.bits),
        _size(layer.bytes_before),
        _size(layer.bytes_after),
        f"{layer.max_error:.2g}",
        f"{layer.rms_error:.2%}",
    )


_size = tables.bytes_text


def check(bits: int, group_size: int, error: type[errors.TurbineError]) -> None:
    """Raise `error` for options that no weight can be packed with."""
    if bits not in BITS:
        raise error(f"cannot quantize to {bits=}", hint="use 4 or 8")
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
        raise error(
            f"cannot make groups of {group_size=}", hint="use a whole number, such as 32 or 128"
        )


def quantize(
    matrix: NDArray[Any], grouping: Grouping, dtype: numpy.dtype[Any]
) -> tuple[NDArray[numpy.int8], NDArray[Any]]:
    """Packed integers, and scales of a dtype; see Note [Packed groups]."""
    blocks = numpy.array_split(matrix, -(-matrix.size // _BLOCK))
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(lambda rows: _quantize_rows(rows, grouping, dtype), blocks))
    values, scales = (numpy.concatenate(part) for part in zip(*parts, strict=True))
    return values, scales


def _quantize_rows(
    rows: NDArray[Any], grouping: Grouping, dtype: numpy.dtype[Any]
) -> tuple[NDArray[numpy.int8], NDArray[Any]]:
    wide = numpy.float64 if rows.dtype == numpy.float64 else numpy.float32
    padding = grouping.padded - grouping.columns
    padded = numpy.pad(rows.astype(wide), ((0, 0), (0, padding)))
    groups = padded.reshape(len(rows), grouping.groups, grouping.group_size)
    scales = _choose_scales(groups, grouping.bits, dtype)
    integers = _round(groups, scales, grouping.bits).astype(numpy.int8)
    return _to_bytes(integers, grouping.bits), scales[..., 0]


def _choose_scales(groups: NDArray[Any], bits: int, dtype: numpy.dtype[Any]) -> NDArray[Any]:
    """For each group the scale, of those considered, with the least squared error."""
    place = numpy.abs(groups).argmax(axis=-1, keepdims=True)
    extreme = numpy.take_along_axis(groups, place, axis=-1)
    # Squares of large errors overflow.
    unit = numpy.abs(extreme).max() or 1
    best, least = numpy.zeros(extreme.shape, dtype), numpy.full(extreme.shape, numpy.inf)
    for reached in _EXTREMES[bits]:
        scales = (extreme / reached).astype(dtype)
        error = _round(groups, scales, bits)
        error *= scales.astype(groups.dtype)
        error -= groups
        error /= unit
        total = numpy.einsum("rgk,rgk->rg", error, error)[..., None]
        best = numpy.where(total < least, scales, best)
        least = numpy.minimum(total, least)
    return best


def _round(groups: NDArray[Any], scales: NDArray[Any], bits: int) -> NDArray[Any]:
    """The integers nearest to the elements, as floats."""
    divisors = numpy.where(scales == 0, 1, scales).astype(groups.dtype)
    limit = 2 ** (bits - 1)
    integers: NDArray[Any] = groups / divisors
    numpy.rint(integers, out=integers)
    return numpy.clip(integers, -limit, limit - 1, out=integers)


def _to_bytes(integers: NDArray[numpy.int8], bits: int) -> NDArray[numpy.int8]:
    if bits == 8:
        return integers
    low, high = numpy.split(integers, 2, axis=-1)
    return (low & 15) | (high << 4)
