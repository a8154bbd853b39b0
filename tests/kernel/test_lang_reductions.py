"""Reductions of tiles that extend beyond their buffers, in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted

M, N = tkl.sym.M, tkl.sym.N


def test_a_reduction_of_the_first_axis_keeps_the_bounds_of_the_second() -> None:
    def kernel(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        rows = tkl.sum(tkl.load(x, (0, 0), (8, 8)), axis=0)
        tkl.store(y, (0,), rows - tkl.max(rows, axis=0))

    x = torch.arange(15.0).reshape(3, 5) - 20
    expected = x.sum(0) - x.sum(0).max()
    assert torch.equal(interpreted(kernel, x=x)["y"], expected)


@pytest.mark.parametrize("function", [tkl.argmax, tkl.argmin])
def test_argmax_and_argmin_skip_masked_lanes(function: Any) -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.i32], y: tkl.OutputBuffer[1, tkl.i64].filled(-7)) -> None:
        tile = tkl.load(x, (0,), (8,), mask=tkl.arange(8) > 1)
        tkl.store(y, (0,), function(tile))

    limits = torch.iinfo(torch.int32)
    worst = limits.min if function is tkl.argmax else limits.max
    x = torch.full((6,), worst, dtype=torch.int32)
    assert interpreted(kernel, x=x)["y"].tolist() == [2]
    assert interpreted(kernel, x=x[:2])["y"].tolist() == [-7]
