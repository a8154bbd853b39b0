"""Pooling matches eager: padding, ceil_mode, indices, nan and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.export import Dim

from tests.commit_seed import Drawn
from tests.compiled import agrees
from tests.models import compiled
from turbine.capture.rules import pooling

pytestmark = pytest.mark.sweep(2)

programs = pytest.mark.sweep(1, "programs")

aten = torch.ops.aten

POOLS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: F.avg_pool2d(x, (2, 1), ceil_mode=True),
    lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    lambda x: F.avg_pool3d(x, (1, 3, 2), (1, 3, 3), (0, 1, 1)),
    lambda x: F.avg_pool3d(x, 2, ceil_mode=True),
    lambda x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, return_indices=True),
    lambda x: F.max_pool2d(x, (3, 1), return_indices=True),
    lambda x: F.max_pool1d(x.flatten(1, 2), 2, ceil_mode=True),
    lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
    lambda x: F.adaptive_max_pool2d(x, (5, 1), return_indices=True),
    lambda x: F.adaptive_max_pool3d(x, (1, 2, 3)),
)


@programs
def test_dynamic_batches_match_eager(drawn: Drawn) -> None:
    pools = drawn(POOLS, 1)

    def pool(x: Tensor) -> tuple[Any, ...]:
        return tuple(pool(x) for pool in pools)

    x = torch.randn(3, 2, 5, 7)
    artifact = compiled(pool, x, dynamic_shapes=(({0: Dim("batch", min=2, max=9)},),))
    for batch in (2, 7):
        x = torch.randn(batch, 2, 5, 7)
        x[1, 0, 2, 3] = float("nan")
        torch.testing.assert_close(artifact(x), pool(x), equal_nan=True)


@programs
def test_defaults_of_settings_match_eager_without_a_batch_and_in_bf16() -> None:
    def pool(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        return F.avg_pool2d(x, 2), F.max_pool2d(x, 2), F.avg_pool2d(y, 2), F.avg_pool1d(x[0], 3)

    args = torch.randn(3, 5, 7), torch.randn(2, 3, 5, 7, dtype=torch.bfloat16)
    torch.testing.assert_close(compiled(pool, *args)(*args), pool(*args))


@programs
def test_dynamic_lengths_match_eager(drawn: Drawn) -> None:
    def pool(x: Tensor) -> tuple[Any, ...]:
        return F.adaptive_max_pool1d(x, 3, return_indices=True), F.max_pool1d(x, 3, 2, 1)

    call = torch.compile(pool, backend="turbine", dynamic=True)
    for length in drawn((7, 5, 33), 1):  # each compiles code of its own
        x = torch.randn(2, length)
        torch.testing.assert_close(call(x), pool(x))


@programs
@pytest.mark.parametrize("dynamic", [False, True])
def test_elements_after_a_single_window_are_ignored(dynamic: bool) -> None:
    def slide(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        half = F.conv2d(x.half(), weight.half(), None, 4, 1)
        return F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.conv2d(x, weight, None, 2), half.float()

    def make() -> tuple[Tensor, ...]:
        return torch.randn(4, 3, 2, 3), torch.randn(2, 3, 2, 2)

    agrees(slide, make, dynamic=dynamic, tolerance=2e-3)


def test_a_number_of_windows_specialized_late_matches_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        lower = torch.tril(x.unflatten(-2, (1, -1)))
        return lower[:, :, -3], *F.max_pool2d(lower, (3, 2), return_indices=True)

    agrees(program, lambda: (torch.randn(33, 3),), dynamic=True)


def test_a_number_of_windows_specialized_by_broadcasting_matches_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return x * F.max_pool2d(x, (2, 2), (2, 3), (0, 1), 2, True)

    agrees(program, lambda: (torch.randn(2, 1, 3, 2),), dynamic=True)


@programs
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_match_eager(dynamic: bool) -> None:
    def pool(x: Tensor) -> Tensor:
        wide = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
        largest = F.max_pool2d(x, 2, ceil_mode=True), F.adaptive_max_pool2d(x, (3, 4))
        return wide.sum() + largest[0].square().sum() + largest[1].square().sum()

    agrees(pool, lambda: (torch.randn(3, 2, 5, 7, requires_grad=True),), dynamic=dynamic)


def draw_sizes(data: st.DataObject, axes: int, low: int, high: int) -> list[int]:
    return data.draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_rewrites_are_equivalent_to_pooling(data: st.DataObject) -> None:
    axes = data.draw(st.integers(2, 3))
    taps, stride, sizes = (draw_sizes(data, axes, *limits) for limits in ((1, 3), (1, 4), (3, 8)))
    padding = [data.draw(st.integers(0, k // 2)) for k in taps]
    x = torch.randn(2, 3, *sizes, dtype=torch.float64)
    count_padding, divisor = data.draw(st.booleans()), data.draw(st.sampled_from([None, 3]))
    average, largest = pooling._POOLS[axes]
    ceil_mode = data.draw(st.booleans())
    mean = (x, taps, stride, padding, True, count_padding, divisor)
    torch.testing.assert_close(pooling.avg_pool(*mean), average(*mean))
    most = (x, taps, stride, padding, [1], ceil_mode)
    found, expected = pooling.max_pool_with_indices(*most), largest(*most)
    torch.testing.assert_close(found, expected)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_rewrites_of_gradients_are_equivalent(data: st.DataObject) -> None:
    axes = data.draw(st.integers(2, 3))
    taps, stride, dilation = (
        draw_sizes(data, axes, *limits) for limits in ((1, 3), (1, 4), (1, 2))
    )
    sizes = [
        data.draw(st.integers((k - 1) * d + 1, 8)) for k, d in zip(taps, dilation, strict=True)
    ]
    padding = [data.draw(st.integers(0, k // 2)) for k in taps]
    ceil_mode, count_padding = data.draw(st.booleans()), data.draw(st.booleans())
    # Equal numbers, so that windows share their maxima.
    x = torch.randint(0, 3, (2, 3, *sizes)).double()
    average, largest = pooling._POOLS[axes]
    window = (taps, stride, padding, dilation, ceil_mode)
    y, indices = largest(x, *window)
    back = (torch.randn_like(y), x, *window, indices)
    expected = getattr(aten, f"max_pool{axes}d_with_indices_backward")(*back)
    torch.testing.assert_close(pooling.max_pool_backward(*back), expected)
    mean = (taps, stride, padding, ceil_mode, count_padding, None)
    share = (torch.randn_like(average(x, *mean)), x, *mean)
    expected = getattr(aten, f"avg_pool{axes}d_backward")(*share)
    torch.testing.assert_close(pooling.avg_pool_backward(*share), expected)
