"""Outputs with an initial value."""

from __future__ import annotations

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

N = tkl.sym.N


def test_equally_filled_outputs_do_not_alias() -> None:
    @tk.gen.kernel(N // 2)
    def halves(
        x: tkl.InputBuffer[N, tkl.f32],
        y: tkl.OutputBuffer[N, tkl.f32].filled(0),
        z: tkl.OutputBuffer[N, tkl.f32].filled(0),
    ) -> None:
        i = tkl.program_id(0)
        tkl.store(y, (i,), tkl.load(x, (i,)) + 1)
        tkl.store(z, (i,), tkl.load(x, (i,)) + 2)

    y, z = halves(torch.zeros(4))
    assert (y.tolist(), z.tolist()) == ([1, 1, 0, 0], [2, 2, 0, 0])
