"""Kernels written for iree-turbine: slices of buffers, blocks of lower rank, passed outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from iree.turbine import kernel as tk
from iree.turbine.kernel import lang as tkl
from iree.turbine.kernel._support.tracing import DebugLaunchContext
from torch import Tensor

from turbine import errors

M, N, B = tkl.sym.M, tkl.sym.N, tkl.sym.B


@tk.gen.thread(M)
def double_rows(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[M, N, tkl.f32]) -> None:
    i = tkl.program_id(0)
    y[i, :] = 2 * x[i, :]


@tk.gen.thread(N)
def swap_ends(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[M, N, tkl.f32]) -> None:
    j = tkl.program_id(0)
    y[1:, j] = x[:-1, j]
    y[0:1, j] = x[-1:, j]


@tk.gen.thread(M)
def sum_rows(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[M, tkl.f32]) -> None:
    i = tkl.program_id(0)
    tkl.store(y, (i,), tkl.sum(tkl.load(x, (i, 0), (N,)), axis=0))


CASES = [
    (double_rows, lambda x: 2 * x),
    (swap_ends, lambda x: x.roll(1, 0)),
    (sum_rows, lambda x: x.sum(1)),
]


@pytest.mark.parametrize(("kernel", "expected"), CASES, ids=["rows", "columns", "fewer axes"])
def test_slices_of_buffers_are_read_and_written(
    kernel: Any, expected: Callable[[Tensor], Tensor]
) -> None:
    x = torch.arange(15.0).reshape(5, 3)
    compiled, interpreted = (torch.full_like(expected(x), -1) for _ in range(2))
    kernel(x, compiled)
    with DebugLaunchContext():
        kernel(x, interpreted)
    assert torch.equal(compiled, expected(x))
    assert torch.equal(interpreted, expected(x))


def test_a_number_is_stored_along_a_slice() -> None:
    @tk.gen.thread(1)
    def fill(y: tkl.OutputBuffer[M, N, tkl.f32]) -> None:
        y[:, :] = 1.5

    y = torch.zeros(3, 5)
    fill(y)
    assert torch.equal(y, torch.full((3, 5), 1.5))


def test_a_slice_with_a_step_is_rejected() -> None:
    @tk.gen.thread(M)
    def skip(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[M, N, tkl.f32]) -> None:
        y[tkl.program_id(0), :] = x[tkl.program_id(0), ::2]

    with pytest.raises(errors.KernelError, match=r"an index is slice\(None, None, 2\)"):
        skip(torch.ones(2, 4), torch.ones(2, 4))


def test_a_tile_of_another_shape_than_the_slice_is_rejected() -> None:
    @tk.gen.thread(M)
    def spill(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[M, N, tkl.f32]) -> None:
        y[tkl.program_id(0), 0:2] = x[tkl.program_id(0), 0:3]

    with pytest.raises(errors.KernelError):
        spill(torch.ones(2, 4), torch.ones(2, 4))


@pytest.mark.parametrize("size", [4, 10])
def test_sizes_are_inferred_from_passed_outputs(size: int) -> None:
    @tk.gen.thread(N // B)
    def count(y: tkl.OutputBuffer[N, tkl.i64]) -> None:
        start = tkl.program_id(0) * B
        tkl.store(y, (start,), tkl.arange(B) + start)

    def run() -> Tensor:
        y = torch.full((size,), -1)
        count(y)
        return y

    assert torch.equal(run(), torch.arange(size))
    with tk.gen.TestLaunchContext({B: 4}):
        assert run().eq(-1).all()


def test_sizes_are_inferred_from_expressions_of_outputs() -> None:
    @tk.gen.thread(1)
    def fill(y: tkl.OutputBuffer[2 * N + 1, tkl.f32]) -> None:
        tkl.store(y, (0,), tkl.constant((N,), tkl.f32, 1.0))
        tkl.store(y, (N,), tkl.constant((N + 1,), tkl.f32, 2.0))

    y = torch.zeros(5)
    fill(y)
    assert y.tolist() == [1, 1, 2, 2, 2]
    with pytest.raises(errors.KernelError, match=r"2\*N \+ 1 cannot be 4, which is axis 0 of y"):
        fill(torch.zeros(4))


def test_index_objects_support_arithmetic() -> None:
    five = tkl.Index(5)
    assert [int(str(n)) for n in (five + 1, 3 - five, five * 2, five // 2)] == [6, -2, 10, 2]

    @tk.gen.thread(1)
    def put(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        tkl.store(y, (0,), tkl.load(x, (0,), (N,)))
        tkl.store(y, (tkl.Index(1) + 1,), tkl.constant((1,), tkl.f32, 9.0))

    y = torch.zeros(4)
    put(torch.ones(4), y)
    assert y.tolist() == [1, 1, 9, 1]


@pytest.mark.parametrize("name", ["i4", "f4e2m1fn", "f6e2m3fn", "f8e8m0fnu"])
def test_unsupported_dtypes_have_names(name: str) -> None:
    with pytest.raises(errors.KernelError, match=f"tkl.{name}, which kernels do not support"):
        tkl.InputBuffer[M, getattr(tkl, name)]
