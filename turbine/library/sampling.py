"""Images sampled at places of a grid, for decompositions of grid_sample."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

B, C, N, P, S, BS = tkl.symbols("B C N P S BS")  # images, channels, neighbors, pixels, samples
T = tkl.types.T


@tk.gen.kernel(S // BS, B, blocks={BS: 64}, specialize=(N,))
def sample_pixels(
    image: tkl.InputBuffer[B, C, P, T],
    places: tkl.InputBuffer[B, N, S, tkl.i64],
    weights: tkl.InputBuffer[B, N, S, T],
    y: tkl.OutputBuffer[B, C, S, T],
) -> None:
    """Sums of neighbors times weights; a negative place counts as a pixel of zero."""
    start, b = tkl.program_id(0) * BS, tkl.program_id(1)
    at = tkl.load(places, (b, 0, start), (None, N, BS))
    weight = tkl.load(weights, (b, 0, start), (None, N, BS))

    @tkl.for_loop(0, C)
    def channels(c: Any) -> None:
        pixels = tkl.load(image, (b, c, at), mask=at >= 0, other=0)
        tkl.store(y, (b, c, start), tkl.sum(pixels * weight, axis=0)[None, None])


def sample(image: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of pixels of an image, whose rows are joined."""
    sums: Tensor = sample_pixels(image, places, weights)
    return sums


KERNELS["sample"] = sample
