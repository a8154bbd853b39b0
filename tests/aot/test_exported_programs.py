"""Exported programs match eager: empty tensors, constants, scalars, strides and dynamic sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

import turbine
from tests.models import compiled
from turbine import errors

pytestmark = pytest.mark.sweep(1)

shapes = pytest.mark.sweep(1, "shapes")

Program = Callable[..., Any]
D = Dim.AUTO


def _agrees(program: Program, *args: Tensor, dynamic: Any = None, sizes: Any = ()) -> None:
    artifact = compiled(program, *args, dynamic_shapes=None if dynamic is None else (dynamic,))
    for given in (args, *sizes):
        torch.testing.assert_close(artifact(*given), program(*given), rtol=0, atol=0)


def test_scatters_of_no_elements_match_eager() -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)

    def scatter(x: Tensor) -> tuple[Tensor, ...]:
        ones = x.new_ones(2, 0)
        return (
            x.scatter(1, none, -2),
            x.scatter(1, none, ones),
            x.scatter_add(0, none, ones),
            x.scatter_reduce(1, none, ones, "amax", include_self=False),
            (x > 0).scatter_reduce(1, none, ones > 0, "amin"),
        )

    _agrees(scatter, torch.randn(4, 3))


def test_sort_pad_and_matmul_of_no_elements_match_eager() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.cummax(x, 0)[0],
            torch.cummin(x, 0)[1],
            torch.median(x, 0)[0],
            torch.diff(x, dim=0).rot90(),
            torch.remainder(x, x),
            x @ x.mT,
            torch.constant_pad_nd(x, (1, 2, -1, 0), 3),
            F.pad(y, (-2, 1, 1, 2)),
            y.gather(0, torch.zeros(0, 2, dtype=torch.int64)),
        )

    args = torch.randn(4, 0), torch.ones(4, 2, dtype=torch.uint8)
    _agrees(program, *args)
    other = torch.randn(7, 0), torch.ones(7, 2, dtype=torch.uint8)
    _agrees(program, *args, dynamic=({0: D}, {0: D}), sizes=[other])


def test_constant_folding_matches_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        three = torch.full_like(x, 3.0)
        whole = three.to(torch.int64)
        filled = x.clone().fill_(1)
        return three > 0, three < 0, three - 2, whole // -2, torch.where(filled > 0, filled, x)

    _agrees(program, torch.randn(5))
    _agrees(program, torch.randn(5), dynamic=({0: D},), sizes=[(torch.randn(3),)])


def test_remainders_of_padded_float16_match_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.remainder(F.pad(x, (-1, 1, 2, 0)), 1)

    _agrees(program, torch.randn(5, 1, dtype=torch.float16))


def test_uint8_fills_match_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        filled = torch.full((3,), 200, dtype=torch.uint8)
        wrapped = x.masked_fill(x > 1, -3)
        return filled, filled // x, torch.full_like(x, 7), torch.zeros_like(x), wrapped

    _agrees(program, torch.tensor([1, 3, 200], dtype=torch.uint8))


def test_fills_that_are_written_and_read_match_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        never = x < x
        some = never.clone()
        some[:, 2:] = True
        return never, some

    call = torch.compile(program, backend="turbine", dynamic=True)
    for width in (4, 7):
        x = torch.arange(2 * width).reshape(2, width)
        torch.testing.assert_close(call(x), program(x))


@shapes
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_numbers_may_precede_tensors(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        small = x.clamp(1, 5) if dtype != torch.bool else x.to(torch.int64) + 1
        return (
            x ^ 1,
            x | 1,
            1 & x,
            1 ^ x,
            2 << small,
            64 >> small,
            7 % small,
            2**small,
            small**small,
        )

    _agrees(program, torch.tensor([0, 1, 3, 100]).to(dtype))


def test_powers_of_integers_match_eager() -> None:
    a = torch.tensor([3, -1, -1, 1, 2, 0, 7, 12, -2])
    b = torch.tensor([41, -3, -2, -5, -1, 0, 63, 18, 64])
    _agrees(lambda a, b: a**b, a, b)


def test_gcd_and_lcm_match_eager() -> None:
    def program(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.gcd(a, b), torch.lcm(a, b)

    a = torch.tensor([0, 0, 12, -12, 89, 127, -7], dtype=torch.int8)
    b = torch.tensor([0, 5, 18, 4, 55, 1, 0], dtype=torch.int8)
    _agrees(program, a, b)


def test_arithmetic_on_sizes_matches_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        marked = x.clone()
        marked.diagonal().fill_(-1.5)  # the shorter of two sizes
        return marked, x.roll(-9, 1), x.roll(4, 1), F.pad(x, (1, 2), mode="reflect")

    sizes = [(torch.randn(3, width),) for width in (3, 4, 11)]
    _agrees(program, torch.randn(3, 6), dynamic=({1: D},), sizes=sizes)


def test_pads_of_scatters_match_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        index = torch.tensor([1, 1])
        put = x.index_put((index,), torch.tensor(2.0))
        return F.pad(x.scatter(0, index, 2), (1, 1)), F.pad(put, (0, 3))

    _agrees(program, torch.randn(4), dynamic=({0: D},), sizes=[(torch.randn(9),)])


def test_gathers_of_pads_match_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return F.pad(x, (2, 2, 1, -2), value=1)[[-2, -1, 1], ..., -3]

    _agrees(program, torch.arange(18).reshape(2, 9, 1))


@shapes
@pytest.mark.parametrize("scale", [2, 0.5])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_interpolation_of_dynamic_sizes_matches_eager(mode: str, scale: float) -> None:
    def program(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=scale, mode=mode)

    artifact = compiled(program, torch.randn(1, 2, 6, 8), dynamic_shapes=(({3: D},),))
    for width in (8, 5, 12):
        x = torch.randn(1, 2, 6, width)
        torch.testing.assert_close(artifact(x), program(x), rtol=1e-5, atol=1e-5)


def test_comparisons_of_bools_and_numbers_match_eager() -> None:
    def program(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        marked = x > 0
        single = x[0].half() == x[:1].half().float() * 1.0001
        orders = marked < n, marked <= n, marked > n, marked >= n, n < marked, n >= marked
        return *orders, single, x[0] * 1.0001 == x[:1].half()

    x = torch.tensor([1.0, -1.0, 1.0, -1.0])
    for dtype in (torch.int8, torch.int32, torch.int64):
        _agrees(program, x, torch.tensor([-2, -1, 2, 1]).to(dtype))


def test_a_row_times_a_matrix_of_dynamic_width_matches_eager() -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        product = x @ y
        spread = z.index_put((torch.tensor([-2]),), x @ y)
        return product, product.softmax(-1), F.linear(x, y.t(), z[0]).abs(), spread

    call = torch.compile(program, backend="turbine", dynamic=True)
    for width in (5, 3, 16):
        args = torch.randn(1, 4), torch.randn(4, width), torch.randn(3, width)
        torch.testing.assert_close(call(*args), program(*args))


def test_norms_along_axes_of_size_1_match_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return torch.linalg.vector_norm(x, 2, -1), torch.linalg.vector_norm(x, 3, (-3, -1))

    _agrees(program, torch.tensor([[[-1.0], [2.0]]]))


def test_a_single_window_matches_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.unfold(0, 6, 2), (x * 2).unfold(0, 5, 3), x.t().unfold(-1, 7, 1)

    _agrees(program, torch.randn(7, 3))


def test_large_numbers_in_a_row_of_dynamic_length_match_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.logcumsumexp(x, -1)

    call = torch.compile(program, backend="turbine", dynamic=True)
    for row in ([100.0, 200.0, 300.0], [-1e18, 0.0, 1.0, 1e18]):
        x = torch.tensor([row])
        torch.testing.assert_close(call(x), program(x))


def test_strides_match_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        y.as_strided((2, 2), (4, 1), 1).add_(1)
        return (
            y,
            x.as_strided((2, 3), (1, 2), 1),
            x[1:].as_strided((3,), (5,)),
            y.as_strided([], []),
        )

    _agrees(program, torch.randn(4, 4))
    with pytest.raises(errors.UnsupportedOp, match=r"as_strided of a tensor that is not contig"):
        compiled(lambda x: x.t().as_strided((2,), (1,)), torch.randn(4, 4))


class _Overlap(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        windows = y.as_strided((4, 3), (2, 1))
        windows[0] = 7.0
        windows[1:, :2] *= 2
        return y * 2


def test_writes_to_a_view_with_shared_elements_are_refused() -> None:
    with pytest.raises(errors.UnsupportedOp, match="share memory") as caught:
        turbine.aot.export(_Overlap(), args=(torch.randn(2, 10),))
    assert f"{__file__}:{_Overlap.forward.__code__.co_firstlineno + 3}" in str(caught.value)


def test_writes_to_a_view_with_shared_elements_match_eager_under_torch_compile() -> None:
    x = torch.randn(2, 10)
    with turbine.config.override(library_calls="never"):
        found = torch.compile(_Overlap(), backend="turbine")(x)
    torch.testing.assert_close(found, _Overlap()(x), rtol=0, atol=0)


def test_elements_that_interleave_are_written() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone()
        y.as_strided((3, 2), (2, 3))[0] = 7.0
        return y

    _agrees(program, torch.randn(2, 10))


@shapes
@pytest.mark.parametrize("write", ["scatter_add", "index_put", "index_fill"])
def test_gathers_and_pads_of_written_slices_match_eager(write: str) -> None:
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "scatter_add": lambda x, i: x.scatter_add(0, i, torch.ones(1, 1)),
        "index_put": lambda x, i: x.index_put((i[0],), torch.ones(1, 3)),
        "index_fill": lambda x, i: x.index_fill(0, i[0], -3),
    }

    def program(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        written = ways[write](x, i)
        return written[[5, -1, 2], ..., 0], F.pad(written[:, 1], (2, 1))

    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.SlowCodeWarning)
        _agrees(program, torch.randn(16, 3), torch.tensor([[3]]))


def test_several_indices_of_dynamic_length_match_eager() -> None:
    def program(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
        rows = torch.arange(x.shape[0])
        return x[rows, i], x[i, j], x[:, i, j], x[i, :, j], x[i, j, i.unsqueeze(1)]

    def arguments(n: int) -> tuple[Tensor, ...]:
        return torch.randn(n, n, n), torch.randint(-n, n, (n,)), torch.randint(-n, n, (n,))

    dynamic = ({0: D, 1: D, 2: D}, {0: D}, {0: D})
    _agrees(program, *arguments(5), dynamic=dynamic, sizes=[arguments(8)])
    artifact = compiled(program, *arguments(5), dynamic_shapes=(dynamic,))
    x, i, j = arguments(6)
    with pytest.raises(errors.RunError, match="index out of range along axis 1"):
        artifact(x, torch.full_like(i, 6), j)  # in range of the axes as one


def test_late_specialized_sizes_are_checked() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cat([x, x * 2]).unbind()[-1]

    artifact = compiled(program, torch.randn(2), dynamic_shapes=(({0: D},),))
    with pytest.raises(errors.ArgumentError, match="has size 3 along axis 0, expected 2"):
        artifact(torch.randn(3))


def test_floats_of_sizes_match_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        larger = F.interpolate(x, scale_factor=1.7)
        return larger, F.scaled_dot_product_attention(larger, larger, larger)

    dynamic = ({0: D, 2: D, 3: D},)
    artifact = compiled(program, torch.randn(2, 3, 8, 6), dynamic_shapes=(dynamic,))
    for shape in ((2, 3, 8, 6), (4, 3, 10, 20), (3, 3, 7, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(artifact(x), program(x))


def test_zero_dim_tensors_match_eager() -> None:
    def program(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        scans = x.all(0), n.any(0), x.cumprod(0), n.cumsum(0), x.nonzero(), (n - n).nonzero()
        means = x.softmax(0), x.log_softmax(0), x.var(0, correction=0), x.std(0, correction=0)
        return *scans, *means, n.flip(0)

    _agrees(program, torch.tensor(2.0), torch.tensor(3))


def test_masked_scatter_matches_eager() -> None:
    def program(x: Tensor, mask: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        return x.masked_scatter(mask > 0, source), x.masked_scatter(mask[0] > 0, source)

    def arguments(n: int) -> tuple[Tensor, ...]:
        return torch.randn(n, 4), torch.randn(n, 4), torch.randn(n, 4)

    _agrees(program, *arguments(3))
    _agrees(program, *arguments(3), dynamic=({0: D}, {0: D}, {0: D}), sizes=[arguments(7)])
    artifact = compiled(lambda x, m, s: x.masked_scatter(m, s), *_masked(source=6))
    with pytest.raises(errors.RunError, match="index out of range"):
        artifact(*_masked(source=6))


def _masked(source: int) -> tuple[Tensor, ...]:
    return torch.zeros(7), torch.ones(7, dtype=torch.bool), torch.ones(source)


def test_complex_numbers_match_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.conj() * 2, x.exp(), x.reciprocal(), F.silu(x)

    large = [1e20 + 1e20j, 1e-20 + 1e-25j, 1e30 + 1j, -90.0, 100 + 2j]
    x = torch.cat([torch.randn(12, dtype=torch.complex64), torch.tensor(large)])
    found = compiled(program, x)(x)
    torch.testing.assert_close(found, program(x), atol=1e-30, rtol=2e-6)


def test_complex_numbers_made_of_parts_match_eager() -> None:
    def program(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        z = torch.complex(a, b)
        wide = z.to(torch.complex128)
        filled = z.masked_fill(a > 0, 1 + 2j), torch.where(a > 0, z, 1j)
        whole = (z / z.sum()).imag, z.prod(0), z.cumprod(0), (z == z.conj()).any()
        return *filled, *whole, torch.isclose(z, z.conj()), wide * wide / (1 - wide), torch.log(z)

    size = torch.export.Dim("size", min=2)
    args = torch.randn(4, 6), torch.randn(4, 6)
    longer = torch.randn(9, 6), torch.randn(9, 6)
    torch.testing.assert_close(compiled(program, *args)(*args), program(*args))
    dynamic = compiled(program, *args, dynamic_shapes=(({0: size}, {0: size}),))
    torch.testing.assert_close(dynamic(*longer), program(*longer))


def test_sums_of_cancelling_integers_match_eager() -> None:
    def program(n: Tensor) -> tuple[Tensor, ...]:
        return n.median(-1)[0], (n == n.sum(-1, keepdim=True)) & (
            (n >= n).sum(-1, keepdim=True) > 9
        )

    def argument(rows: int) -> tuple[Tensor]:
        return (torch.randint(-9, 10, (rows, 33), dtype=torch.int32),)

    _agrees(program, *argument(3), dynamic=({0: D},), sizes=[argument(7)])


def test_reshapes_of_empty_dynamic_tensors_match_eager() -> None:
    _agrees(torch.isin, torch.ones(0, 2), torch.ones(3), dynamic=({1: D}, {0: D}))
