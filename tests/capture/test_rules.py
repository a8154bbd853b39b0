"""Decompositions: dynamic and empty sizes, scopes and accuracy.

Single ops are in test_rule_table.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.export import Dim

import turbine
from tests.compiled import agrees
from tests.compiled import compiled as under_torch_compile
from tests.models import Fn, compiled, relative_error
from turbine import config
from turbine.capture.rules import fourier, shapes
from turbine.capture.rules.convolution import convolution
from turbine.capture.rules.products import expert_gradients, expert_product

pytestmark = pytest.mark.sweep(2)

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_strided_convolutions_down_to_one_pixel_match_eager(size: int, dims: int) -> None:
    layer = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dims](3, 4, 3, 2, 1)
    x = torch.randn(2, 3, *[size] * dims)
    found = turbine.aot.export(layer, args=(x,)).compile()(x)
    assert relative_error(found, layer(x).detach()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_depthwise_transposed_convolutions_match_eager(dtype: torch.dtype) -> None:
    weight, bias = torch.randn(6, 1, 3, 2, dtype=dtype), torch.randn(6, dtype=dtype)
    x = torch.randn(2, 6, 5, 4, dtype=dtype)

    def model(x: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, weight.to(x.dtype), bias.to(x.dtype), 2, 1, 1, 6)

    artifact = compiled(model, x, dynamic_shapes=(({2: Dim.AUTO},),))
    for sample in (x, x[:, :, :3]):  # PyTorch adds up float16 in float16 on some CPUs
        torch.testing.assert_close(artifact(sample), model(sample.double()).to(dtype))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_convolution_rewrites_are_equivalent(data: st.DataObject) -> None:
    axes, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    transposed = data.draw(st.booleans())

    def each(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    taps, stride, padding, sizes = each(1, 4), each(1, 3), each(0, 2), each(4, 7)
    dilation = [1] * axes if transposed else each(1, 2)
    extra = [data.draw(st.integers(0, s - 1)) if transposed else 0 for s in stride]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, taps, strict=True)]
    fits = all(n + 2 * p >= r for n, p, r in zip(sizes, padding, reach, strict=True))
    grows = all(
        (n - 1) * s + k > 2 * p for n, s, k, p in zip(sizes, stride, taps, padding, strict=True)
    )
    assume(grows if transposed else fits)
    inner, outer = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2))
    x = torch.randn(2, inner, *sizes, dtype=torch.float64)
    ends = (inner, outer // groups) if transposed else (outer, inner // groups)
    weight = torch.randn(*ends, *taps, dtype=torch.float64)
    bias = torch.randn(outer, dtype=torch.float64)
    arguments = (x, weight, bias, stride, padding, dilation, transposed, extra, groups)
    with config.override(interpret=True):  # a kernel would be compiled for each size
        found = convolution(*arguments)
    assume(found is not NotImplemented)
    torch.testing.assert_close(found, torch.ops.aten.convolution(*arguments))


def test_user_decompositions_apply_inside_their_scope_only() -> None:
    x = torch.rand(4)
    doubled = {torch.ops.aten.relu.default: lambda x: x * 2}
    with turbine.aot.extend_aot_decompositions(add_ops=doubled):
        inside = turbine.aot.export(Fn(torch.relu), args=(x,)).compile()
    outside = turbine.aot.export(Fn(torch.relu), args=(x,)).compile()
    torch.testing.assert_close(inside(x), x * 2)
    torch.testing.assert_close(outside(x), x)


def test_removing_a_decomposition_leaves_the_op_in_the_graph() -> None:
    with turbine.aot.extend_aot_decompositions(remove_ops=[torch.ops.aten.tan]):
        text = turbine.aot.export(Fn(torch.tan), args=(torch.rand(4),)).text()
    assert "torch.aten.tan" in text
    assert "torch.aten.tan" not in turbine.aot.export(Fn(torch.tan), args=(torch.rand(4),)).text()


def test_scans_accumulate_in_a_wider_type() -> None:
    def scan(*rows: torch.Tensor) -> list[torch.Tensor]:
        return [scan(x, 1) for x in rows for scan in (torch.cumsum, torch.cumprod)]

    wide = 1 + torch.rand(3, 2000) * 2e-3
    rows = [wide.to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    for found, expected in zip(under_torch_compile(scan)(*rows), scan(*rows), strict=True):
        room = torch.finfo(expected.dtype).eps
        torch.testing.assert_close(found, expected, rtol=room, atol=0)


def test_linspace_counts_from_the_nearer_end() -> None:
    torch.testing.assert_close(
        under_torch_compile(lambda x: torch.linspace(-1, 1, 27) + x)(torch.zeros(27)),
        torch.linspace(-1, 1, 27),
        rtol=0,
        atol=1e-9,
    )


def test_lerp_of_transposed_tensors_matches_eager() -> None:
    def lerp(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        ends = [(x, y), (x.t(), y), (x, y.t()), (x.t(), y.t()), (y[0], x.t())]
        return [torch.lerp(start, end, 0.3) for start, end in ends]

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(compiled(lerp, x, y)(x, y), lerp(x, y))
    agrees(lerp, lambda: (x, y), ops=0)


REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(0, keepdim=True) + 1,
    "prod": lambda x: x.prod(0, keepdim=True),
    "all": lambda x: x.all(0, keepdim=True),
    "any": lambda x: ~x.any(0, keepdim=True),
    "mean": lambda x: x.mean(0, keepdim=True).isnan(),
}


def test_reductions_of_empty_axes_can_be_reduced_again() -> None:
    def reduced(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: reduce(x).sum(-1) for name, reduce in REDUCTIONS.items()}

    agrees(reduced, lambda: (torch.randn(0, 3),), ops=0)


def test_any_and_all_along_several_or_no_axes_match_eager() -> None:
    def reduced(*tensors: torch.Tensor) -> list[torch.Tensor]:
        axes: list[list[int]] = [[0, 2], [1], []]
        found = [(x.any(axis), x.all(axis)) for x in tensors for axis in axes]
        return [*itertools.chain(*found), tensors[0].all((0, 1), keepdim=True)]

    x = torch.arange(-2, 22).reshape(2, 3, 4) // 2
    args = [x.to(dtype) for dtype in (torch.float32, torch.uint8, torch.bool)]
    torch.testing.assert_close(compiled(reduced, *args)(*args), reduced(*args))


def test_an_empty_write_to_a_dynamic_batch_matches_eager() -> None:
    def double_none(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 1::2] *= 2
        return y

    artifact = compiled(double_none, torch.randn(2, 1, 1), dynamic_shapes=(({0: Dim.AUTO},),))
    x = torch.randn(5, 1, 1)
    torch.testing.assert_close(artifact(x), x)


def test_a_few_columns_are_interleaved() -> None:
    def interleave(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = torch.stack((x, y), -1)
        narrow = torch.stack((x, y, -x), -1).bfloat16()
        return pairs.flatten(-2), torch.stack((pairs, pairs + 1), -1), narrow

    sizes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},) * 2
    x, y = torch.randn(2, 5, 7)
    artifact = compiled(interleave, x, y, dynamic_shapes=(sizes,))
    for shape in ((5, 7), (4, 64), (3, 2)):
        x, y = torch.randn(2, *shape)
        for found, expected in zip(artifact(x, y), interleave(x, y), strict=True):
            assert torch.equal(found, expected)
    stacked = shapes.cat([x.unsqueeze(-1), y.unsqueeze(-1)], -1)
    assert torch.equal(stacked, torch.stack((x, y), -1))
    for columns in ([x.t().unsqueeze(-1)] * 2, [x, y], [x.unsqueeze(0)] * 2):
        assert shapes.cat(columns, -1) is NotImplemented


@pytest.mark.parametrize(
    "transform",
    [lambda x: torch.fft.fft2(x).real, lambda x: torch.fft.irfft(torch.fft.rfft(x))],
    ids=["fft2", "irfft"],
)
def test_fourier_transforms_of_a_dynamic_batch_match_eager(transform: Function) -> None:
    artifact = compiled(transform, torch.randn(2, 5, 6), dynamic_shapes=(({0: Dim.DYNAMIC},),))
    x = torch.randn(3, 5, 6)
    torch.testing.assert_close(artifact(x), transform(x), rtol=1e-5, atol=1e-5)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_fourier_transforms_are_laid_out_as_in_eager(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["_fft_c2c", "_fft_r2c", "_fft_c2r"]))
    sizes = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(sizes))))
    axes = data.draw(st.permutations(range(len(sizes))))[: data.draw(st.integers(1, 3))]
    dtype = torch.float64 if kind == "_fft_r2c" else torch.complex128
    x = torch.randn(sizes, dtype=dtype).permute(order)
    last = 2 * x.shape[axes[-1]] - 2 if kind == "_fft_c2r" else True
    found = fourier.RULES[getattr(torch.ops.aten, kind).default](x, axes, 0, last)
    expected = getattr(torch.ops.aten, kind)(x, axes, 0, last)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_logcumsumexp_of_an_empty_tensor_matches_eager(dynamic: bool) -> None:
    agrees(
        lambda x: torch.logcumsumexp(x, 0), lambda: (torch.randn(0, 4, 2),), dynamic=dynamic, ops=0
    )


CONSTANTS: dict[str, Function] = {
    "difference": lambda x: x - x + 2,
    "comparison": lambda x: (x + 1) <= (x + 1),
    "bools": lambda x: (x > 0) >= (x > 0),
    "copy": lambda x: x.clone() == x,
    "zero": lambda x: x * 0 + 1,
    "steps": lambda x: torch.arange(x.shape[-1]) * 0 + 1,
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
def test_constant_integers_are_reduced_correctly(constant: Function, dynamic: bool) -> None:
    x = torch.randint(-9, 10, (3, 7))
    agrees(lambda x: constant(x).sum(-1), lambda: (x,), dynamic=dynamic, ops=0)


@pytest.mark.parametrize(("rows", "ends"), [(10, [3, 3, 8, 9]), (1, [0, 1, 1, 1])])
def test_layers_of_experts_multiply_each_row_with_the_matrix_of_its_group(
    rows: int, ends: list[int]
) -> None:
    x, grad = torch.randn(rows, 6, requires_grad=True), torch.randn(rows, 5)
    weights = torch.randn(len(ends), 6, 5, requires_grad=True)
    starts = [0, *ends[:-1]]
    parts = [x[a:b] @ w for a, b, w in zip(starts, ends, weights, strict=True)]
    expected = torch.cat([*parts, torch.zeros(rows - ends[-1], 5)])
    expected.backward(grad)
    with torch.no_grad():
        found = expert_product(x, weights, torch.tensor(ends))
        gradients = expert_gradients(x, weights, torch.tensor(ends), grad)
    torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(gradients, (x.grad, weights.grad))
