"""Fourier transforms of any length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.models import compiled
from turbine.capture.rules import fourier

# Powers of two, products of small and of large primes, and primes.
LENGTHS = [1, 2, 255, 263, 400, 614, 1021, 1024, 2991, 10007, 16000]


@pytest.mark.parametrize("size", LENGTHS)
def test_transforms_of_any_length_match_eager(size: int) -> None:
    x, y = torch.randn(2, 2, size, dtype=torch.float64)
    z = torch.complex(x, y)
    half = torch.fft.rfft(x) + 1j
    scale = size**0.5
    pairs = [
        (fourier.r2c(x, [1], 0, True), torch.fft.rfft(x)),
        (fourier.r2c(x, [1], 1, False), torch.fft.fft(x, norm="ortho")),
        (fourier.c2c(z, [1], 0, True), torch.fft.fft(z)),
        (fourier.c2c(z, [1], 2, False), torch.fft.ifft(z)),
        (fourier.c2r(half, [1], 2, size), torch.fft.irfft(half, n=size)),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12 * scale)


def test_rules_for_parts_leave_long_rows_to_pytorch() -> None:
    rule = fourier.RULES[torch.ops.aten._fft_r2c.default]
    assert rule(torch.randn(2, 1024), [1], 0, True) is NotImplemented
    assert rule(torch.randn(2, 256), [1], 0, True) is not NotImplemented


@pytest.mark.run
def test_a_spectrogram_is_exported() -> None:
    def spectrogram(x: Tensor, window: Tensor) -> Tensor:
        return torch.stft(x, 400, 160, window=window, return_complex=True).abs()

    x, window = torch.randn(2, 2000), torch.hann_window(400)
    found = compiled(spectrogram, x, window)(x, window)
    torch.testing.assert_close(found, spectrogram(x, window), rtol=1e-4, atol=1e-4)
