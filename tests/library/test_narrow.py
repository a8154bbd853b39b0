"""Matmuls and convolutions of 16-bit floats on CPUs: in f32, and rounded once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.library.placing import AVX512, NEON, exported, placed
from tests.models import Fn
from turbine.target import Target

aten = torch.ops.aten
narrow = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def add_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.addmm(x[0], x, y)


@pytest.mark.sweep(1)
@narrow
@pytest.mark.parametrize("function", [torch.mm, torch.bmm, add_product, torch.matmul])
def test_products_are_rounded_once(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    shape = (3, 24, 24) if function is torch.bmm else (24, 24)
    x, y = (torch.randn(shape).to(dtype) for _ in range(2))
    result = turbine.aot.export(Fn(function), args=(x, y)).compile()(x, y)
    # A float64 sum of exact products, rounded once, is at most one unit apart.
    exact = function(x.double(), y.double())
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), exact, rtol=unit, atol=1e-5)


@pytest.mark.parametrize("target", [NEON, AVX512], ids=["NEON", "AVX-512"])
@narrow
def test_no_matmul_of_narrow_operands_is_left(dtype: torch.dtype, target: Target) -> None:
    x, y = torch.randn(33, 40).to(dtype), torch.randn(40, 50).to(dtype)
    program = placed(exported(Fn(torch.mm), x, y), target)
    (product,) = program.graph.graph.find_nodes(op="call_function", target=aten.mm.default)
    assert {one.meta["val"].dtype for one in (product, *product.all_input_nodes)} == {torch.float32}


@pytest.mark.sweep(1)
@narrow
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 32, 4, stride=4), (2, 3, 16, 16)),
        (nn.Conv2d(8, 16, 3, dilation=2), (1, 8, 12, 12)),
        (nn.Conv2d(8, 16, 3, groups=2, padding=1), (2, 8, 9, 9)),
        (nn.Conv2d(8, 8, 3, groups=8, dilation=2), (2, 8, 9, 9)),
        (nn.Conv2d(8, 16, 3, padding=1), (2, 8, 9, 9)),
        (nn.Conv3d(4, 8, 2), (1, 4, 5, 6, 7)),
        (nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1), (2, 8, 6, 6)),
        (nn.Conv1d(4, 6, 3, stride=3), (2, 4, 20)),
    ],
    ids=["patches", "dilated", "grouped", "depthwise", "kernel", "3d", "transposed", "1d"],
)
def test_convolutions_are_rounded_once(
    layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    model, x = layer.to(dtype).eval(), torch.randn(shape).to(dtype)
    result = turbine.aot.export(model, args=(x,)).compile()(x)
    exact = model.double()(x.double()).detach()
    assert result.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), exact, rtol=unit, atol=1e-5)
