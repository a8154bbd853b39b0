"""Reductions of tiles that stick out of their buffers, in the interpreter."""

from __future__ import annotations

import torch

import turbine.kernel.lang as tkl
from tests.interpreted import interpreted

M, N = tkl.sym.M, tkl.sym.N


def test_a_reduction_of_the_first_axis_keeps_the_bounds_of_the_second() -> None:
    def kernel(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        rows = tkl.sum(tkl.load(x, (0, 0), (8, 8)), axis=0)
        tkl.store(y, (0,), rows - tkl.max(rows, axis=0))

    x = torch.arange(15.0).reshape(3, 5) - 20
    expected = x.sum(0) - x.sum(0).max()
    assert torch.equal(interpreted(kernel, x=x)["y"], expected)
