"""Scans and reductions with a user function, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from turbine import errors

M, N, BN, T, U = tkl.sym.M, tkl.sym.N, tkl.sym.BN, tkl.types.T, tkl.types.U


def of_rows(
    function: Callable[[Any], Any], x: torch.Tensor, block: int, dtype: Any = T
) -> torch.Tensor:
    """A function of the rows of a tensor, read as tiles that may stick out of it."""

    def kernel(x, y):  # type: ignore[no-untyped-def]
        tile = tkl.load(x, (tkl.program_id(0), 0), (1, BN))
        tkl.store(y, (tkl.program_id(0), 0), function(tile))

    kernel.__annotations__ = {
        "x": tkl.InputBuffer[M, N, T],
        "y": tkl.OutputBuffer[M, N, dtype],
    }
    return interpreted(kernel, (M,), {"BN": block}, x=x)["y"]


ROWS = torch.tensor([[3.0, -1.0, 4.0, 1.5, -5.0], [2.0, 7.0, 1.0, -8.0, 2.0]])


def test_cumsum_of_u32_is_i64() -> None:
    x = torch.tensor([[1, 100, 100, 2**32 - 1]]).to(torch.uint32)
    actual = of_rows(lambda x: tkl.cumsum(x, axis=-1), x, 4, tkl.i64)
    assert torch.equal(actual, x.to(torch.int64).cumsum(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cumsum_of_small_floats_accumulates_in_f32(dtype: torch.dtype) -> None:
    x = torch.full((1, 40), 0.1).to(dtype)
    actual = of_rows(lambda x: tkl.cumsum(x, axis=1), x, 40)
    assert torch.equal(actual, x.to(torch.float32).cumsum(1).to(dtype))


def test_cummax_of_u64_is_unsigned() -> None:
    x = torch.tensor([[5, 2**63 + 1, 7]], dtype=torch.uint64)
    assert of_rows(lambda x: tkl.cummax(x, 1), x, 4).tolist() == [[5, 2**63 + 1, 2**63 + 1]]


@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_with_addition_is_cumsum(reverse: bool) -> None:
    x = torch.arange(10).reshape(2, 5)

    def scanned(x: Any) -> Any:
        return tkl.associative_scan(lambda a, b: a + b, x, 1, reverse)

    expected = x.flip(1).cumsum(1).flip(1) if reverse else x.cumsum(1)
    assert torch.equal(of_rows(scanned, x, 8), expected)


def test_associative_scan_skips_masked_lanes() -> None:
    def scanned(x: Any) -> Any:
        first = tkl.associative_scan(lambda a, b: a + b, x, axis=0)
        return tkl.cumsum(x, axis=0) * 100 + first

    def kernel(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[N, tkl.i64].filled(-1)) -> None:
        place = tkl.arange(BN)
        tile = tkl.load(x, (0,), (BN,), mask=place != 1)
        tkl.store(y, (0,), scanned(tile))

    y = interpreted(kernel, (), {"BN": 6}, x=torch.tensor([1, 2, 3, 4]))["y"]
    assert y.tolist() == [101, -1, 404, 808]


def test_scan_functions_may_capture_values() -> None:
    def scanned(x: Any) -> Any:
        limit = tkl.max(x)
        return tkl.associative_scan(lambda a, b: tkl.minimum(a + b, limit), x, 1)

    x = torch.tensor([[1, 2, 3, 4]])
    assert of_rows(scanned, x, 4).tolist() == [[1, 3, 4, 4]]


def test_reduce_of_a_tuple_computes_argmax() -> None:
    def larger(one: Any, other: Any) -> Any:
        keep = one[0] >= other[0]
        return tkl.where(keep, one[0], other[0]), tkl.where(keep, one[1], other[1])

    def reduced(x: Any) -> Any:
        places = tkl.iota(x.shape, 1)
        _, place = tkl.reduce(larger, (x, places), axis=1, init=(float("-inf"), -1))
        return tkl.broadcast_to(place[:, None], x.shape)

    assert of_rows(reduced, ROWS, 6, tkl.i64)[:, 0].tolist() == [2, 1]


def test_reduce_of_no_elements_is_init() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.i32], y: tkl.OutputBuffer[1, tkl.i32]) -> None:
        total = tkl.reduce(lambda a, b: a + b, tkl.load(x, (0,), (4,)), 0, 7)
        tkl.store(y, (0,), total)

    x = torch.zeros(0, dtype=torch.int32)
    assert interpreted(kernel, (), x=x)["y"].tolist() == [7]


def test_a_function_that_returns_another_dtype_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match=r"takes \[f32\] and returns \[bool\]"):
        of_rows(lambda x: tkl.associative_scan(lambda a, b: a < b, x, 1), ROWS, 5)


def test_a_function_that_returns_too_few_values_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match="the combine function returns 1 values, not 2"):
        of_rows(lambda x: tkl.associative_scan(lambda a, b: a[0], (x, x), 1)[0], ROWS, 5)


def test_init_needs_a_value_for_each_tile() -> None:
    with pytest.raises(errors.KernelError, match=r"tkl.reduce of 2 tiles has init=0.0"):
        of_rows(lambda x: tkl.reduce(lambda a, b: a, (x, x), 1, 0.0)[0], ROWS, 5)


def test_an_axis_out_of_range_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match=r"tkl.cumsum: axis 2 is out of range"):
        of_rows(lambda x: tkl.cumsum(x, 2), ROWS, 5)


def test_a_function_that_does_not_take_two_arguments_is_rejected() -> None:
    first_of_three: Any = lambda a, b, c: a  # noqa: E731
    with pytest.raises(errors.KernelError, match="the combine function is called with"):
        of_rows(lambda x: tkl.associative_scan(first_of_three, x, 1), ROWS, 5)
