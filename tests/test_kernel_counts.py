"""Grids and loops count blocks, the last and partial one too, and nothing beyond it."""

from typing import Any

import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.kernel import algebra
from turbine.kernel.lang.control_flow import blocks

N, M, B = (algebra.symbol(name) for name in "NMB")
SIZES = {
    symbol: number for s, number in zip((N, M, B), (10, 3, 4), strict=True) for symbol in s.symbols
}


@pytest.mark.parametrize(
    ("written", "counted"),
    [
        (algebra.quotient(N, B), 3),
        (algebra.quotient(N, B) * M, 9),
        (algebra.ceiling(N, B), 3),
        (algebra.ceiling(N, 5), 2),
        (algebra.smaller(algebra.quotient(N, B), M + 7), 3),
        (algebra.quotient(algebra.quotient(N, B), 2), 2),
    ],
    ids=str,
)
def test_a_quotient_counts_the_blocks_that_cover_a_size(
    written: algebra.Expr, counted: int
) -> None:
    assert blocks(written).evaluate(SIZES) == counted


SIZE, BLOCK, T = tkl.sym.SIZE, tkl.sym.BLOCK, tkl.types.T


def filled(one: Any, other: Any) -> tk.Kernel:
    """Sums of a row's elements, and of their squares, in outputs that start with a number."""
    Total = tkl.OutputBuffer[SIZE, T]

    @tk.gen.kernel(SIZE // BLOCK)
    def sums(x: tkl.InputBuffer[SIZE, T], y: Total.filled(one), z: Total.filled(other)) -> None:
        start = (tkl.program_id(0) * BLOCK,)
        block = tkl.load(x, start, (BLOCK,))
        tkl.atomic_add(y, start, block)
        tkl.atomic_max(z, start, block)

    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_outputs_that_hold_one_number_are_two_places(dtype: torch.dtype) -> None:
    x = torch.arange(5).to(dtype)
    y, z = filled(1, 1)(x)
    assert torch.equal(y, x + 1)
    assert torch.equal(z, x.clamp(min=1))


def test_an_output_starts_with_any_number_of_its_type() -> None:
    x = torch.arange(5).to(torch.bfloat16)
    y, z = filled(-0.5, float("-inf"))(x)
    assert torch.equal(y, x - 0.5)
    assert torch.equal(z, x)


def test_an_argument_that_is_in_and_out_is_changed() -> None:
    @tk.gen.kernel(SIZE // BLOCK)
    def double(x: tkl.InOutBuffer[SIZE, T]) -> None:
        start = (tkl.program_id(0) * BLOCK,)
        tkl.store(x, start, 2 * tkl.load(x, start, (BLOCK,)))

    x = torch.arange(5.0)
    assert double(x) is None
    assert torch.equal(x, 2 * torch.arange(5.0))
