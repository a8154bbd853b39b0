"""Sort and top-k in the interpreter and in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from turbine import errors

M, N, BM, BN, K, T = tkl.sym.M, tkl.sym.N, tkl.sym.BM, tkl.sym.BN, tkl.sym.K, tkl.types.T
NAN = float("nan")
ROWS = torch.tensor([[3.0, -1.0, NAN, 3.0, -5.0], [2.0, 7.0, 1.0, -8.0, 2.0]])


def sorted_rows(
    function: Callable[[Any], tuple[Any, Any]], x: torch.Tensor, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and places that a function makes of a tile that may stick out of a tensor."""

    def kernel(
        x: tkl.InputBuffer[M, N, T],
        values: tkl.OutputBuffer[M, N, T].filled(-99),
        places: tkl.OutputBuffer[M, N, tkl.i64].filled(-1),
    ) -> None:
        value, place = function(tkl.load(x, (tkl.program_id(0) * BM, 0), (BM, BN)))
        tkl.store(values, (tkl.program_id(0) * BM, 0), value)
        tkl.store(places, (tkl.program_id(0) * BM, 0), place)

    outputs = interpreted(kernel, (M // BM,), {"BM": 2, "BN": block}, x=x)
    return outputs["values"], outputs["places"]


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_sorting_along_the_first_axis_moves_masked_rows_to_the_end() -> None:
    x = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 0.0]])

    def kernel(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
        tkl.store(y, (0, 0), tkl.sort(tkl.load(x, (0, 0), (4, 4)), axis=0, descending=True))

    same(interpreted(kernel, (), x=x)["y"], x.sort(0, descending=True).values)


DTYPES = [
    *(torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_sorted(dtype: torch.dtype) -> None:
    x = torch.tensor([[5, 0, 120, 7, 1]]).to(dtype)
    values, places = sorted_rows(tkl.sort_with_indices, x, 6)
    wide = x.to(torch.float64)
    same(values.to(torch.float64), wide.sort(1).values)
    same(wide.gather(1, places), wide.sort(1).values)


@tk.gen.kernel(M, blocks={K: 20})
def ordered(
    x: tkl.InputBuffer[M, N, T],
    up: tkl.OutputBuffer[M, N, tkl.i64],
    down: tkl.OutputBuffer[M, N, tkl.i64],
    first: tkl.OutputBuffer[M, K, tkl.i64],
    last: tkl.OutputBuffer[M, K, tkl.i64],
) -> None:
    row = tkl.program_id(0), 0
    tile = tkl.load(x, row, (1, N))
    tkl.store(up, row, tkl.argsort(tile))
    tkl.store(down, row, tkl.argsort(tile, descending=True))
    tkl.store(first, row, tkl.topk(tile, K, largest=False)[1])
    tkl.store(last, row, tkl.topk(tile, K)[1])


@pytest.mark.sweep(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [37, 700])
def test_compiled_sorts_are_stable_for_every_dtype(dtype: torch.dtype, length: int) -> None:
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(0)).mul(60).round()
    x = (x if dtype.is_floating_point or dtype.is_signed else x.abs()).to(dtype)
    if dtype.is_floating_point and dtype != torch.float8_e5m2:
        x[:, 3:6] = torch.tensor([NAN, -0.0, torch.inf])
        x[:, 9:30] = torch.linspace(-1, 1, 21, dtype=torch.float64) * torch.finfo(dtype).tiny
    up, down, first, last = ordered(x)
    wide = x.to(torch.float64) if dtype.itemsize < 8 else x
    same(up, wide.sort(stable=True).indices)
    same(down, wide.sort(stable=True, descending=True).indices)
    same(first, up[:, :20])
    same(last, down[:, :20])


def test_u64_is_sorted_as_unsigned() -> None:
    x = torch.tensor([[2**64 - 1, 1, 2**63, 5, 2**63 - 1]], dtype=torch.uint64)
    values, places = sorted_rows(tkl.sort_with_indices, x, 5)
    assert values.tolist() == [[1, 5, 2**63 - 1, 2**63, 2**64 - 1]]
    assert places.tolist() == [[1, 3, 4, 2, 0]]


def test_masked_lanes_go_to_the_end_and_are_not_stored() -> None:
    def kernel(x: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[N, T].filled(-1)) -> None:
        tile = tkl.load(x, (0,), (BN,), mask=tkl.arange(BN) % 2 == 0)
        tkl.store(y, (0,), tkl.sort(tile, descending=True))

    y = interpreted(kernel, (), {"BN": 8}, x=torch.tensor([4, 9, 6, 9, 5, 9, 1]))["y"]
    assert y.tolist() == [6, 5, 4, 1, -1, -1, -1]


def test_lanes_before_the_buffer_go_to_the_end() -> None:
    def kernel(x: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[N, T].filled(-1)) -> None:
        tkl.store(y, (0,), tkl.sort(tkl.load(x, (-2,), (4,))))

    y = interpreted(kernel, (), x=torch.tensor([4, 3, 2, 1]))["y"]
    assert y.tolist() == [3, 4, -1, -1]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("count", [1, 4, 65])
def test_compiled_topk_is_the_start_of_a_stable_sort(count: int) -> None:
    @tk.gen.kernel(M, blocks={K: count})
    def largest_evens(
        x: tkl.InputBuffer[M, N, T],
        values: tkl.OutputBuffer[M, K, T].filled(-99),
        places: tkl.OutputBuffer[M, K, tkl.i64].filled(-1),
    ) -> None:
        row = tkl.program_id(0)
        tile = tkl.load(x, (row, 0), (1, N), mask=tkl.arange(N)[None] % 2 == 0)
        value, place = tkl.topk(tile, K)
        tkl.store(values, (row, 0), value)
        tkl.store(places, (row, 0), place)

    x = torch.arange(300).remainder(7).reshape(2, 150).float()
    x[0, 4] = x[0, 8] = NAN
    x[1] = x[1].sort().values
    values, places = largest_evens(x)
    expected = x[:, ::2].sort(stable=True, descending=True)
    same(values, expected.values[:, :count])
    same(places, 2 * expected.indices[:, :count])


def test_topk_of_too_few_elements_masks_off_the_rest() -> None:
    def kernel(x: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[4, T].filled(-1)) -> None:
        tkl.store(y, (0,), tkl.topk(tkl.load(x, (0,), (8,)), 4)[0])

    assert interpreted(kernel, (), x=torch.tensor([2, 5]))["y"].tolist() == [5, 2, -1, -1]


def test_topk_larger_than_the_tile_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match="k=9 is larger than the axis, 8"):
        sorted_rows(lambda x: tkl.topk(tkl.zeros((2, 8), tkl.f32), 9), ROWS, 8)
