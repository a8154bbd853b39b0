"""Loops and branches over tiles with masked-off lanes, in the interpreter."""

from __future__ import annotations

import pytest
import torch

import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted

N = tkl.sym.N


def test_loops_may_return_tiles_masked_outside_of_them() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        tile = tkl.load(x, (0,), (8,), mask=tkl.arange(8) % 2 == 0)
        zeros = tkl.zeros((8,), tkl.f32)
        body = tkl.for_loop(0, 2, init_args=[zeros])(lambda turn, carried: tile)
        tkl.store(y, (0,), body[0])

    assert interpreted(kernel, x=torch.arange(1.0, 6.0))["y"].tolist() == [1, 0, 3, 0, 5]


@pytest.mark.parametrize("size", [2, 5])
def test_branches_may_contain_scans_and_sorts(size: int) -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        tile = tkl.load(x, (0,), (8,))
        tkl.store(y, (0,), tkl.cond(N > 3, lambda: tkl.cumsum(tile, 0), lambda: tkl.sort(tile)))

    x = torch.randn(size)
    expected = x.cumsum(0) if size > 3 else x.sort().values
    assert torch.equal(interpreted(kernel, x=x)["y"], expected)
