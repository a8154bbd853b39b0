"""Matmul kernels of operands that change: which ops they replace, and that they match PyTorch."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.library.placing import AVX512, count, exported, placed
from tests.models import Fn
from turbine.library.matmul import kernel_for, partial_products, transpose

pytestmark = pytest.mark.sweep(3)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "height", "width"),
    [(128, 40, 128, 128, 64), (70, 33, 96, 70, 48), (192, 7, 64, 96, 64), (13, 5, 50, 8, 16)],
)
def test_the_kernels_match_torch(
    rows: int, depth: int, columns: int, height: int, width: int
) -> None:
    x, y, bias = torch.randn(rows, depth), torch.randn(depth, columns), torch.randn(columns)
    expected = x @ y + bias
    for forms in product((False, True), repeat=2):
        left, right = (
            one.T.contiguous() if form else one for one, form in zip((x, y), forms, strict=True)
        )
        kernel = kernel_for((height, width), forms)
        torch.testing.assert_close(kernel(left, right, bias), expected, rtol=1e-4, atol=1e-5)
        given = left, right, bias
        torch.testing.assert_close(kernel.interpret(*given), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(transpose(x), x.T)


def ops(*blocks: tuple[int, int]) -> list[object]:
    forms = [*product((False, True), repeat=2)]
    return [kernel_for(one, form).op.op for one in blocks for form in forms]


def test_parts_of_a_long_contraction_add_up() -> None:
    x, y = torch.randn(6, 96), torch.randn(25, 96)
    parts = partial_products.using(BK=32)(x, y)
    assert parts.shape == (3, 6, 25)
    torch.testing.assert_close(parts.sum(0), x @ y.T, rtol=1e-4, atol=1e-4)


def test_a_long_contraction_with_a_small_result_is_split() -> None:
    def multiply(x: Tensor, y: Tensor) -> Tensor:
        return x @ y.T

    x, y = torch.randn(6, 2560), torch.randn(25, 2560)
    program = placed(exported(Fn(multiply), x, y), AVX512)
    assert count(program, partial_products.using(BK=640).op.op) == 1
    torch.testing.assert_close(program.graph(x, y)[0], x @ y.T, rtol=1e-4, atol=1e-3)


def test_blocks_divide_the_sizes_and_leave_programs_for_several_cores() -> None:
    for shape, blocks in (
        ((512, 64, 512), (512, 64)),
        ((512, 128, 256), (256, 64)),
        ((384, 512, 96), (96, 48)),
        ((64, 4096, 64), (64, 64)),
    ):
        rows, depth, columns = shape
        x, y = torch.randn(rows, depth), torch.randn(depth, columns)
        program = placed(exported(Fn(torch.matmul), x, y), AVX512)
        assert count(program, *ops(blocks)) == 1, shape


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(512, 512, 100), (32, 4096, 256), (64, 5000, 64), (1031, 1024, 64), (256, 128, 256)],
)
def test_other_sizes_stay(rows: int, depth: int, columns: int) -> None:
    x, y = torch.randn(rows, depth), torch.randn(depth, columns)
    assert count(placed(exported(Fn(torch.matmul), x, y), AVX512), aten.mm.default) == 1


def test_dynamic_sizes_other_dtypes_and_other_cpus_keep_the_op() -> None:
    x, y = torch.randn(512, 128), torch.randn(128, 512)
    batch = exported(Fn(torch.matmul), x, y, dynamic_shapes=(({0: Dim("rows")}, None),))
    assert count(placed(batch, AVX512), aten.mm.default) == 1
    assert count(placed(exported(Fn(torch.matmul), x, y)), aten.mm.default) == 1
    wide = exported(Fn(torch.matmul), x.double(), y.double())
    assert count(placed(wide, AVX512), aten.mm.default) == 1


def test_half_precision_is_computed_in_f32() -> None:
    x, y = torch.randn(512, 128), torch.randn(128, 512)
    program = placed(exported(Fn(torch.matmul), x.half(), y.half()), AVX512)
    assert count(program, *ops((512, 64))) == 1
    assert program.graph(x.half(), y.half())[0].dtype == torch.float16


class Gradients(nn.Module):
    """The products of a linear layer and of its gradients."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.addmm(bias, x, weight.T),
            y @ weight.T.T,
            (x.T @ y).T,
            (y.T @ x),
        )


def test_transposes_are_part_of_the_kernels() -> None:
    x, weight = torch.randn(512, 256), torch.randn(192, 256)
    args = x, weight, torch.randn(192), torch.randn(512, 192)
    program = placed(exported(Gradients(), *args), AVX512)
    assert count(program, aten.mm.default, aten.addmm.default, aten.permute.default) == 0
    assert count(program, transpose.op.op) == 2
    assert count(program, *ops((128, 64), (256, 64), (96, 64))) == 4
    places = program.graph.graph.find_nodes(op="placeholder")
    assert len(places) == len(args)
    for found, expected in zip(program.graph(*args), Gradients()(*args), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_shared_product_and_its_transpose_are_both_right() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        product = x @ y
        return product, product.T + 1

    x, y = torch.randn(512, 128), torch.randn(128, 256)
    program = placed(exported(Fn(both), x, y), AVX512)
    for found, expected in zip(program.graph(x, y), both(x, y), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_product_of_a_product_is_computed_once() -> None:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y) @ y.T

    x, y = torch.randn(512, 256), torch.randn(256, 512)
    program = placed(exported(Fn(chain), x, y), AVX512)
    assert count(program, aten.mm.default) == 0
    (found,) = program.graph(x, y)
    torch.testing.assert_close(found, chain(x, y), rtol=1e-3, atol=1e-2)
