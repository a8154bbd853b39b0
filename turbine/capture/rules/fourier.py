"""Fourier transforms of rows as matmuls with matrices of cosines and sines.

Note [Long Fourier transforms]
A row of a * b elements is a matrix of a rows. Its columns are transformed, multiplied with roots of
unity, and then its rows are transformed. A row of prime length is convolved with a chirp, by two
transforms of a power of two (Bluestein).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import isqrt, pi, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from turbine.capture.sizes import hint, is_empty

aten = torch.ops.aten
Parts = tuple[Tensor, Tensor | None]

# A matmul takes quadratic time; PyTorch's transforms are faster for longer rows.
LONGEST = 256
# Longer rows of a prime length are transformed by a chirp.
_LONGEST_PRIME = 512
_BY_ROOT, _BY_COUNT = 1, 2  # PyTorch's normalization modes


def c2c(
    x: Tensor, dim: list[int], normalization: int, forward: bool, *, longest: int | None = None
) -> Tensor:
    """Complex to complex."""
    if not _is_supported(x, dim, longest):
        return NotImplemented
    parts: Parts = (torch.real(x), torch.imag(x))
    for axis in dim:
        parts = _transform(parts, axis, x.shape[axis], forward)
    value = _scale(parts, normalization, [x.shape[axis] for axis in dim])
    return _lay_out(value, _order(_strides(x), dim))


def r2c(
    x: Tensor, dim: list[int], normalization: int, onesided: bool, *, longest: int | None = None
) -> Tensor:
    """Real to complex; with `onesided`, without the mirrored half of the last axis."""
    if not _is_supported(x, dim, longest):
        return NotImplemented
    last = dim[-1]
    kept = x.shape[last] // 2 + 1 if onesided else x.shape[last]
    parts = _transform((x, None), last, kept, True)
    for axis in dim[:-1]:
        parts = _transform(parts, axis, x.shape[axis], True)
    value = _scale(parts, normalization, [x.shape[axis] for axis in dim])
    return _lay_out(value, _order(_strides(x), dim[:-1], last))


def c2r(
    x: Tensor, dim: list[int], normalization: int, last_size: int, *, longest: int | None = None
) -> Tensor:
    """Complex to real, from the first half of a Hermitian row."""
    is_known = isinstance(last_size, int) and (longest is None or last_size <= longest)
    if not _is_supported(x, dim, longest) or not is_known:
        return NotImplemented
    parts: Parts = (torch.real(x), torch.imag(x))
    for axis in dim[:-1]:
        parts = _transform(parts, axis, x.shape[axis], False)
    count = last_size // 2 + 1
    real, imaginary = (
        _rows(part, dim[-1]).narrow(-1, 0, count) for part in parts if part is not None
    )
    transform = _real_transform if last_size <= LONGEST else _long_real_transform
    value = transform(real, imaginary, last_size)
    sizes = [x.shape[axis] for axis in dim[:-1]]
    value = value * _factor(normalization, [*sizes, last_size])
    strides = _strides(x)
    if len(dim) > 1:  # PyTorch transforms the other axes first
        order = _order(strides, dim[:-1])
        strides = [-order.index(axis) for axis in range(x.dim())]
    return _lay_out(value.movedim(-1, dim[-1]).contiguous(), _order(strides, [], dim[-1]))


def _real_transform(real: Tensor, imaginary: Tensor, size: int) -> Tensor:
    """The real row of a Hermitian one."""
    count = real.shape[-1]
    # Every element counts twice, except the first, and the middle one of an even row.
    twice = torch.full([count], 2.0, dtype=real.dtype, device=real.device)
    place = torch.arange(count, device=real.device)
    single = (place == 0) | (place * 2 == size)
    weight = torch.where(single, torch.ones_like(twice), twice)
    cosine, sine = _waves(count, size, size, real)
    return (real * weight) @ cosine - (imaginary * weight) @ sine


def _long_real_transform(real: Tensor, imaginary: Tensor, size: int) -> Tensor:
    """The real row of a Hermitian one, whose other half is added."""
    mirrored = range(1, size - real.shape[-1] + 1)
    halves = (part.narrow(-1, 1, len(mirrored)).flip(-1) for part in (real, imaginary))
    real_half, imaginary_half = halves
    whole = torch.cat([real, real_half], -1), torch.cat([imaginary, -imaginary_half], -1)
    return _transform_rows(whole, size, False)[0]


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


def _is_supported(x: Tensor, dim: list[int], longest: int | None) -> bool:
    """Whether the transformed axes are static and not too long; others may be dynamic."""
    sizes = [x.shape[axis] for axis in dim]
    is_known = all(isinstance(size, int) for size in sizes) and not is_empty(x)
    return bool(dim) and is_known and (longest is None or all(size <= longest for size in sizes))


def _transform(parts: Parts, axis: int, kept: int, forward: bool) -> Parts:
    """Transform one axis: the sum of x[n] exp(-2 pi i n k / size); backward with +."""
    real, imaginary = parts
    rows = _rows(real, axis), None if imaginary is None else _rows(imaginary, axis)
    new_real, new_imaginary = _transform_rows(rows, kept, forward)
    return new_real.movedim(-1, axis), new_imaginary.movedim(-1, axis)


def _transform_rows(parts: Parts, kept: int, forward: bool) -> tuple[Tensor, Tensor]:
    """The first elements of transformed rows: see Note [Long Fourier transforms]."""
    size = parts[0].shape[-1]
    divisor = next(n for n in range(isqrt(size), 0, -1) if size % n == 0)
    if size <= LONGEST or (divisor == 1 and size <= _LONGEST_PRIME):
        return _multiply_by_waves(parts, kept, forward)
    if divisor == 1:
        whole = _transform_by_chirp(parts, forward)
    else:
        whole = _transform_in_two_steps(parts, divisor, forward)
    return whole[0].narrow(-1, 0, kept), whole[1].narrow(-1, 0, kept)


def _multiply_by_waves(parts: Parts, kept: int, forward: bool) -> tuple[Tensor, Tensor]:
    real, imaginary = parts
    cosine, sine = _waves(real.shape[-1], kept, real.shape[-1], real)
    if forward:
        sine = -sine
    new_real, new_imaginary = real @ cosine, real @ sine
    if imaginary is not None:
        new_real = new_real - imaginary @ sine
        new_imaginary = new_imaginary + imaginary @ cosine
    return new_real, new_imaginary


def _transform_in_two_steps(parts: Parts, count: int, forward: bool) -> tuple[Tensor, Tensor]:
    """Transform rows as matrices of `count` rows."""
    real, imaginary = parts
    size = real.shape[-1]
    shape = [*real.shape[:-1], count, size // count]
    matrix = real.reshape(shape), None if imaginary is None else imaginary.reshape(shape)
    columns = _transform(matrix, -2, count, forward)
    cosine, sine = _waves(count, size // count, size, real)
    turned = _multiply(columns, (cosine, -sine if forward else sine))
    rows = _transform_rows(turned, size // count, forward)
    new_real, new_imaginary = (part.transpose(-1, -2).reshape(real.shape) for part in rows)
    return new_real, new_imaginary


def _transform_by_chirp(parts: Parts, forward: bool) -> tuple[Tensor, Tensor]:
    """Transform rows by a convolution: 2 n k = n n + k k - (k - n) (k - n)."""
    real, imaginary = parts
    size = real.shape[-1]
    padded = 1 << (2 * size - 2).bit_length()
    place = torch.arange(size, device=real.device)
    angle = (place * place % (2 * size)).to(torch.float64) * (pi / size)
    cosine, sine = _wave(angle)
    chirp = cosine.to(real.dtype), (-sine if forward else sine).to(real.dtype)
    # The other chirp, whose places count from 0 in both directions.
    between = torch.zeros([padded - 2 * size + 1], dtype=torch.float64, device=real.device)
    inverse = [
        torch.cat([wave, between, wave.narrow(0, 1, size - 1).flip(0)])
        for wave in (cosine, sine if forward else -sine)
    ]
    filter_real, filter_imaginary = _transform_rows((inverse[0], inverse[1]), padded, True)
    response = (filter_real / padded).to(real.dtype), (filter_imaginary / padded).to(real.dtype)
    zeros = torch.zeros_like(real) if imaginary is None else imaginary
    given = [
        torch.nn.functional.pad(part, (0, padded - size))
        for part in _multiply((real, zeros), chirp)
    ]
    spectrum = _multiply(_transform_rows((given[0], given[1]), padded, True), response)
    convolved = _transform_rows(spectrum, size, False)
    return _multiply(convolved, chirp)


def _multiply(x: Parts, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The product of complex numbers."""
    (a, b), (c, d) = x, y
    assert b is not None
    return a * c - b * d, a * d + b * c


def _rows(x: Tensor, axis: int) -> Tensor:
    return x.movedim(axis, -1)


def _waves(rows: int, columns: int, period: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi n k / period; n k is reduced modulo the period first, for accuracy."""
    n = torch.arange(rows, device=like.device).unsqueeze(1)
    turns = (n * torch.arange(columns, device=like.device)) % period
    cosine, sine = _wave(turns.to(torch.float64) * (2 * pi / period))
    return cosine.to(like.dtype), sine.to(like.dtype)


def _wave(angle: Tensor) -> tuple[Tensor, Tensor]:
    # Compute the sine as a shifted cosine: one function to compile.
    waves = torch.cos(torch.stack([angle, angle - pi / 2]))
    return waves[0], waves[1]


def _scale(parts: Parts, normalization: int, sizes: list[int]) -> Tensor:
    real, imaginary = parts
    assert imaginary is not None
    factor = _factor(normalization, sizes)
    return torch.complex((real * factor).contiguous(), (imaginary * factor).contiguous())


def _factor(normalization: int, sizes: list[int]) -> float:
    count = prod(sizes)
    return {_BY_ROOT: 1 / sqrt(count), _BY_COUNT: 1 / count}.get(normalization, 1.0)


EXPORTED: dict[Any, Callable[..., Any]] = {
    aten._fft_c2c.default: c2c,
    aten._fft_r2c.default: r2c,
    aten._fft_c2r.default: c2r,
}
# Where PyTorch can run the op, it transforms longer rows.
RULES = {op: partial(rule, longest=LONGEST) for op, rule in EXPORTED.items()}
