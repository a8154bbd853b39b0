"""Random numbers for graphs: a number depends on the seed and on its place in a stream alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.random_ops import Stream

N, B = tkl.symbols("N B")
T = tkl.types.T
f32, i64 = tkl.f32, tkl.i64


def _stream(name: str, draw: Callable[..., Any]) -> tk.Kernel:
    """A kernel that draws as many numbers as `like` has, from a place of the stream on."""

    def numbers(
        like: tkl.InputBuffer[N, T],
        seed: tkl.InputBuffer[1, i64],
        first: tkl.InputBuffer[1, i64],
        y: tkl.OutputBuffer[N, f32],
    ) -> None:
        start = tkl.program_id(0) * B
        places = tkl.load(first, (0,), (None,)) + start + tkl.arange(B)
        tkl.store(y, (start,), draw(tkl.load(seed, (0,), (None,)), places))

    numbers.__name__ = name
    return tk.gen.kernel(N // B, blocks={B: 1024})(numbers)


STREAM = Stream(uniform=_stream("uniform", tkl.rand), normal=_stream("normal", tkl.randn))
