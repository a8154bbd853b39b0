"""Scans along rows and columns by kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from tests.models import compiled

programs = pytest.mark.sweep(1, "programs")

SUMS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool]
EXTREMES = [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int64, torch.bool]


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return (x * 3).round().abs().to(dtype) if dtype == torch.uint8 else (x * 3).round().to(dtype)


def check(found: Any, expected: Any, tolerance: float | None = None) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@programs
@pytest.mark.parametrize("dtype", SUMS)
def test_sums_and_products_match_eager(dtype: torch.dtype) -> None:
    def scan(x: Tensor) -> tuple[Tensor, ...]:
        near_one = 1 + x / 512 if x.is_floating_point() else x
        return (x.cumsum(-1), x.cumsum(1), x.cumsum(0), near_one.cumprod(-1), near_one.cumprod(1))

    x = drawn(dtype, 3, 40, 1100)
    check(compiled(scan, x)(x), scan(x))


@programs
@pytest.mark.parametrize("dtype", EXTREMES)
def test_extremes_have_the_index_of_the_last_that_is_equal(dtype: torch.dtype) -> None:
    def scan(x: Tensor) -> tuple[Tensor, ...]:
        return (*x.cummax(-1), *x.cummax(1), *x.cummin(-1), *x.cummin(0))

    x = drawn(dtype, 40, 50, 1100)
    if dtype.is_floating_point:
        x[0, 3, 7], x[1, 4, 1030], x[1, 4, 1090] = (float("nan"),) * 3
        x[2, 0, 0], x[2, 1, 0] = float("-inf"), float("inf")
    check(compiled(scan, x)(x), scan(x), 0)


@programs
def test_scans_of_dynamic_sizes() -> None:
    def scan(x: Tensor) -> tuple[Tensor, ...]:
        return (x.cumsum(-1), x.cumsum(0), x.cumprod(1), *x.cummin(-1), *x.cummax(0))

    x = torch.rand(3, 20, 300) + 0.5
    sizes = tuple(Dim(name, min=1) for name in ("rows", "columns", "length"))
    artifact = compiled(scan, x, dynamic_shapes=((dict(enumerate(sizes)),),))
    for shape in ((3, 20, 300), (1, 1, 1), (2, 300, 7), (70, 2, 2050)):
        x = torch.rand(shape) + 0.5
        check(artifact(x), scan(x))


def test_scans_are_kernels() -> None:
    from turbine import aot

    class Scan(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.cumsum(-1), x.cummax(0)

    text = aot.export(Scan(), args=(torch.randn(64, 64),)).text()
    assert "cumsum_of_rows_in_float64" in text
    assert "cummax_of_columns" in text
