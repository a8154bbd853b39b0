"""Fourier transforms of short rows as matmuls with matrices of cosines and sines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import pi, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from turbine.capture.sizes import hint, is_empty

aten = torch.ops.aten
Parts = tuple[Tensor, Tensor | None]

# A matmul takes quadratic time; PyTorch's transforms are faster for longer rows.
LONGEST = 256
_BY_ROOT, _BY_COUNT = 1, 2  # PyTorch's normalization modes


def c2c(x: Tensor, dim: list[int], normalization: int, forward: bool) -> Tensor:
    """Complex to complex."""
    if not _is_short(x, dim) or not dim:
        return NotImplemented
    parts: Parts = (torch.real(x), torch.imag(x))
    for axis in dim:
        parts = _transform(parts, axis, x.shape[axis], forward)
    value = _scale(parts, normalization, [x.shape[axis] for axis in dim])
    return _lay_out(value, _order(_strides(x), dim))


def r2c(x: Tensor, dim: list[int], normalization: int, onesided: bool) -> Tensor:
    """Real to complex; with `onesided`, without the mirrored half of the last axis."""
    if not _is_short(x, dim) or not dim:
        return NotImplemented
    last = dim[-1]
    kept = x.shape[last] // 2 + 1 if onesided else x.shape[last]
    parts = _transform((x, None), last, kept, True)
    for axis in dim[:-1]:
        parts = _transform(parts, axis, x.shape[axis], True)
    value = _scale(parts, normalization, [x.shape[axis] for axis in dim])
    return _lay_out(value, _order(_strides(x), dim[:-1], last))


def c2r(x: Tensor, dim: list[int], normalization: int, last_size: int) -> Tensor:
    """Complex to real, from the first half of a Hermitian row."""
    if not _is_short(x, dim) or not dim or last_size > LONGEST:
        return NotImplemented
    parts: Parts = (torch.real(x), torch.imag(x))
    for axis in dim[:-1]:
        parts = _transform(parts, axis, x.shape[axis], False)
    real, imaginary = (_rows(part, dim[-1]) for part in parts if part is not None)
    count = last_size // 2 + 1
    real, imaginary = real.narrow(-1, 0, count), imaginary.narrow(-1, 0, count)
    # Every element counts twice, except the first, and the middle one of an even row.
    twice = torch.full([count], 2.0, dtype=real.dtype, device=x.device)
    place = torch.arange(count, device=x.device)
    single = (place == 0) | (place * 2 == last_size)
    weight = torch.where(single, torch.ones_like(twice), twice)
    cosine, sine = _waves(count, last_size, last_size, real)
    value = (real * weight) @ cosine - (imaginary * weight) @ sine
    sizes = [x.shape[axis] for axis in dim[:-1]]
    value = value * _factor(normalization, [*sizes, last_size])
    strides = _strides(x)
    if len(dim) > 1:  # PyTorch transforms the other axes first
        order = _order(strides, dim[:-1])
        strides = [-order.index(axis) for axis in range(x.dim())]
    return _lay_out(value.movedim(-1, dim[-1]).contiguous(), _order(strides, [], dim[-1]))


def _strides(x: Tensor) -> list[int]:
    return [hint(stride) for stride in x.stride()]


def _order(strides: list[int], dim: list[int], *last: int) -> list[int]:
    """The axes of PyTorch's result in memory: transformed ones are inside, if MKL computes it."""
    axes = range(len(strides))
    if not torch.backends.mkl.is_available():
        return [*axes]

    def by_stride(of: Iterable[int]) -> list[int]:
        return sorted(of, key=lambda axis: -strides[axis])

    inside = [axis % len(strides) for axis in (*dim, *last)]
    within = by_stride(inside[: len(dim)])
    return [*by_stride(axis for axis in axes if axis not in inside), *within, *inside[len(dim) :]]


def _lay_out(value: Tensor, order: list[int]) -> Tensor:
    if order == sorted(order):
        return value
    back = [order.index(axis) for axis in range(len(order))]
    return value.permute(order).contiguous().permute(back)


def _is_short(x: Tensor, dim: list[int]) -> bool:
    """Whether the transformed axes are static and short; others may be dynamic."""
    sizes = [x.shape[axis] for axis in dim]
    is_known = all(isinstance(size, int) for size in sizes) and not is_empty(x)
    return is_known and all(size <= LONGEST for size in sizes)


def _transform(parts: Parts, axis: int, kept: int, forward: bool) -> Parts:
    """Transform one axis: the sum of x[n] exp(-2 pi i n k / size); backward with +."""
    real = _rows(parts[0], axis)
    cosine, sine = _waves(real.shape[-1], kept, real.shape[-1], real)
    if forward:
        sine = -sine
    new_real, new_imaginary = real @ cosine, real @ sine
    if parts[1] is not None:
        imaginary = _rows(parts[1], axis)
        new_real = new_real - imaginary @ sine
        new_imaginary = new_imaginary + imaginary @ cosine
    return new_real.movedim(-1, axis), new_imaginary.movedim(-1, axis)


def _rows(x: Tensor, axis: int) -> Tensor:
    return x.movedim(axis, -1)


def _waves(rows: int, columns: int, period: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi n k / period; n k is reduced modulo the period first, for accuracy."""
    n = torch.arange(rows, device=like.device).unsqueeze(1)
    turns = (n * torch.arange(columns, device=like.device)) % period
    angle = turns.to(torch.float64) * (2 * pi / period)
    # Compute the sine as a shifted cosine: one function to compile.
    waves = torch.cos(torch.stack([angle, angle - pi / 2])).to(like.dtype)
    return waves[0], waves[1]


def _scale(parts: Parts, normalization: int, sizes: list[int]) -> Tensor:
    real, imaginary = parts
    assert imaginary is not None
    factor = _factor(normalization, sizes)
    return torch.complex((real * factor).contiguous(), (imaginary * factor).contiguous())


def _factor(normalization: int, sizes: list[int]) -> float:
    count = prod(sizes)
    return {_BY_ROOT: 1 / sqrt(count), _BY_COUNT: 1 / count}.get(normalization, 1.0)


RULES: dict[Any, Callable[..., Any]] = {
    aten._fft_c2c.default: c2c,
    aten._fft_r2c.default: r2c,
    aten._fft_c2r.default: c2r,
}
