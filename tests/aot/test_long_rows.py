"""Sorts, searches and running extremes of long rows, and results whose size depends on values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from tests.models import compiled
from turbine import errors

pytestmark = pytest.mark.sweep(2)

LENGTH = 700


def check(function: Callable[..., Any], *args: Tensor, artifact: Any = None, **options: Any) -> Any:
    artifact = artifact or compiled(function, *args, **options)
    found, expected = artifact(*args), function(*args)
    pairs = [(found, expected)] if isinstance(found, Tensor) else zip(found, expected, strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return artifact


def numbers(dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows with ties, zeros of both signs, subnormal numbers of float16 and nan."""
    x = torch.randn(3, LENGTH, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    x[0, 5], x[1, 7], x[2, 9] = float("nan"), -0.0, float("inf")
    x[:, 100:110] = torch.linspace(-6e-5, 6e-5, 10)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("descending", [False, True])
def test_long_rows_are_sorted(dtype: torch.dtype, descending: bool) -> None:
    x = numbers().nan_to_num().to(dtype) if dtype in (torch.int64, torch.bool) else numbers(dtype)
    check(lambda x: tuple(x.sort(stable=True, descending=descending)), x)


def test_a_sort_of_dynamic_rows_takes_any_length() -> None:
    def sort(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.sort(stable=True))

    sizes = (({0: Dim("rows"), 1: Dim("length")},),)
    artifact = check(sort, numbers(), dynamic_shapes=sizes)
    for shape in ((1, 2), (5, 3000)):
        check(sort, torch.randn(shape), artifact=artifact)


SELECTIONS: dict[str, Callable[[Tensor], Any]] = {
    "few of topk": lambda x: x.topk(3).values,
    "many of topk": lambda x: x.topk(90, largest=False).values,
    "kthvalue": lambda x: x.kthvalue(300).values,
    "median": lambda x: x.median(1).values,
    "nanmedian": lambda x: x.nanmedian(1).values,
    "cummax": lambda x: tuple(x.cummax(1)),
    "cummin": lambda x: tuple(x.cummin(1)),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_of_long_rows(name: str) -> None:
    check(SELECTIONS[name], numbers())


@pytest.mark.parametrize("right", [False, True])
def test_searches_in_long_rows(right: bool) -> None:
    rows, values = numbers().nan_to_num().sort(1).values, numbers()[:, :50].contiguous()
    check(lambda s, v: torch.searchsorted(s, v, right=right), rows, values)
    check(lambda s, v: torch.bucketize(v, s, right=right), rows[0], values)


def test_unique_elements() -> None:
    x = torch.tensor([3.0, 1, 3, float("nan"), 1, float("nan"), -0.0, 0.0])
    runs = torch.tensor([[1, 1, 2], [2, 2, 1]])

    def unique(x: Tensor, runs: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.unique(x),
            *torch.unique(x, return_inverse=True, return_counts=True),
            *torch.unique_consecutive(runs, return_inverse=True, return_counts=True),
        )

    artifact = check(unique, x, runs)
    check(unique, torch.zeros(8), torch.arange(6).view(2, 3), artifact=artifact)


def test_repeats_that_are_data() -> None:
    def repeat(x: Tensor, n: Tensor) -> Tensor:
        return torch.repeat_interleave(x, n, dim=0)

    artifact = check(repeat, torch.randn(3, 2), torch.tensor([0, 2, 1]))
    check(repeat, torch.randn(3, 2), torch.tensor([4, 0, 0]), artifact=artifact)


def test_rows_are_added_where_a_mask_is_true() -> None:
    def add(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        return x.index_put((mask,), rows, accumulate=True)

    mask = torch.tensor([True, False, True, True, False])
    artifact = check(add, torch.randn(5, 4), mask, torch.randn(3, 4))
    check(add, torch.randn(5, 4), ~mask | mask.flip(0) & mask, torch.randn(3, 4), artifact=artifact)
    with pytest.raises(errors.RunError, match="as many rows as the mask selects"):
        artifact(torch.randn(5, 4), ~mask, torch.randn(3, 4))


def test_scaled_products_of_8_bits() -> None:
    a = torch.randn(16, 32).to(torch.float8_e4m3fn)
    b = torch.randn(16, 32).to(torch.float8_e4m3fn).t()
    scales = torch.tensor(0.5), torch.tensor(2.0)

    def multiply(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return torch._scaled_mm(a, b, scale_a=s, scale_b=t, out_dtype=torch.float32)

    found = compiled(multiply, a, b, *scales)(a, b, *scales)
    torch.testing.assert_close(found, multiply(a, b, *scales), rtol=1e-5, atol=1e-5)
