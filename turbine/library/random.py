"""Random numbers for graphs: a number depends on the seed and on its place in a stream alone."""

from __future__ import annotations

import turbine.kernel as tk
import turbine.kernel.lang as tkl

N, B = tkl.symbols("N B")
T = tkl.types.T
f32, i64 = tkl.f32, tkl.i64


@tk.gen.kernel(N // B, blocks={B: 1024})
def uniform(
    like: tkl.InputBuffer[N, T],
    seed: tkl.InputBuffer[1, i64],
    first: tkl.InputBuffer[1, i64],
    y: tkl.OutputBuffer[N, f32],
) -> None:
    """Uniform numbers from 0 to below 1, as many as `like` has, from a place of the stream on."""
    start = tkl.program_id(0) * B
    places = tkl.load(first, (0,), (None,)) + start + tkl.arange(B)
    tkl.store(y, (start,), tkl.rand(tkl.load(seed, (0,), (None,)), places))


@tk.gen.kernel(N // B, blocks={B: 1024})
def normal(
    like: tkl.InputBuffer[N, T],
    seed: tkl.InputBuffer[1, i64],
    first: tkl.InputBuffer[1, i64],
    y: tkl.OutputBuffer[N, f32],
) -> None:
    """Standard normal numbers, as many as `like` has, from a place of the stream on."""
    start = tkl.program_id(0) * B
    places = tkl.load(first, (0,), (None,)) + start + tkl.arange(B)
    tkl.store(y, (start,), tkl.randn(tkl.load(seed, (0,), (None,)), places))
