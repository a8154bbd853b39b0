"""Corner cases of arithmetic match eager: constants, nan, zeros, infinities, uint8, long rows."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.export import Dim

import turbine
from tests.commit_seed import Drawn
from tests.models import compiled
from turbine import errors
from turbine.capture import rules

pytestmark = pytest.mark.sweep(2)

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
INF, NAN = float("inf"), float("nan")
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal up to rounding; nan, infinities and dtypes exactly."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return torch.allclose(found.double(), expected.double(), rtol=2e-5, atol=0, equal_nan=True)


def wrong(functions: dict[str, Function], a: torch.Tensor, b: torch.Tensor) -> list[str]:
    """The functions whose compiled results are others than eager's, all compiled at once."""
    artifact = compiled(lambda a, b: tuple(f(a, b) for f in functions.values()), a, b)
    found = zip(functions.items(), artifact(a, b), strict=True)
    return [name for (name, function), result in found if not same(result, function(a, b))]


def pairs(values: Sequence[float], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = zip(*itertools.product(values, values), strict=True)
    return torch.tensor(first, dtype=dtype), torch.tensor(second, dtype=dtype)


def test_negative_divisors_of_unsigned_integers_match_eager() -> None:
    def divide(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x // -3, x % -3, torch.div(x, -3, rounding_mode="trunc"), torch.fmod(x, -3)

    x = torch.tensor([0, 1, 4, 200, 255], dtype=torch.uint8)
    call = torch.compile(divide, backend="turbine")
    torch.testing.assert_close(call(x), divide(x))


def test_remainders_by_a_narrower_scalar_match_eager() -> None:
    """The compiler did not come to an end: its reciprocal asserts, so no loop of it is unused."""
    x, y = torch.randn(3, dtype=torch.float64), torch.tensor(0.75, dtype=torch.float16)
    found = torch.compile(torch.fmod, backend="turbine")(x, y)
    torch.testing.assert_close(found, torch.fmod(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_narrowing_and_widening_cast_rounds(dtype: torch.dtype) -> None:
    functions: dict[str, Function] = {
        "converted": lambda x, _: x.to(dtype).float() == x,
        "promoted": lambda x, _: x.to(dtype) == x,
        "computed": lambda x, _: (x.to(dtype) + 1) - (x + 1),
        "doubled": lambda x, _: x.to(dtype).double() - x,
    }
    x = torch.linspace(-3, 3, 37)
    assert wrong(functions, x, x) == []
    assert wrong(functions, x[5], x[5]) == []


def test_bitwise_ops_on_scalars_match_eager() -> None:
    x = torch.tensor(2.5)
    assert wrong({"bits": lambda x, _: (x * 2).view(torch.int32)}, x, x) == []


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_variance_without_degrees_of_freedom_matches_eager() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0, INF], [-1e-30, 1.0, NAN, 1.0]])
    functions: dict[str, Function] = {"var": lambda x, _: x.var(0, correction=2)}
    assert wrong(functions, x, x) == []


def test_a_deviation_whose_square_underflows_matches_eager() -> None:
    x = torch.tensor([[1e-30, 2.0], [-1e-30, 3.0], [0.0, 5.0]])
    assert wrong({"std": lambda x, _: x.std(0)}, x, x) == []


def test_integers_not_representable_as_floats_are_exact() -> None:
    large = [2**63 - 1, -(2**62) - 5, 2**53 + 1, -(2**53) - 1, 12345678901234567, 2**24 + 1, -7, 1]
    a, b = (torch.tensor(side) for side in zip(*itertools.product(large, large), strict=True))
    functions: dict[str, Function] = {
        "negative": lambda a, _: -a,
        "negative int32": lambda a, _: -a.int(),
        "floor_divide": lambda a, b: a // b,
        "remainder": lambda a, b: a % b,
        "fmod": torch.fmod,
        "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "by a number": lambda a, _: a // 7 + a % 7,
        "written in place": lambda a, b: a.index_add(0, b.abs() % 3, b),
    }
    assert wrong(functions, a, b) == []


def test_large_integers_are_rounded_before_a_function_of_them() -> None:
    n = torch.tensor([10**12, 2**53 + 1, -(2**31), 7])
    functions: dict[str, Function] = {
        "sin": lambda n, _: n.sin(),
        "cos": lambda n, _: n.cos(),
        "tan": lambda n, _: n.tan(),
    }
    assert wrong(functions, n, n) == []


def test_constants_that_are_shifted_and_added_match_eager() -> None:
    """The compiler reduced them once instead of once per element."""
    functions: dict[str, Function] = {
        "flipped": lambda x, _: torch.full((3, 6), 6.0).flip(1).sum(1),
        "read by index": lambda x, i: torch.full((3, 6), 6.0)[:, i].norm(dim=1),
        "bytes": lambda x, i: torch.full((6,), 3, dtype=torch.uint8)[i].sum(0, keepdim=True),
        "gathered": lambda x, i: torch.full((3, 6), 6.0).gather(1, i.expand(3, 2)).sum(1),
    }
    assert wrong(functions, torch.randn(3), torch.tensor([1, -1]).abs()) == []
    bad = compiled(lambda i: torch.full((6,), 6.0)[i].sum(), torch.tensor([1, 2]))
    with pytest.raises(errors.RunError, match="out of range"):
        bad(torch.tensor([1, 6]))


def test_uint8_between_converted_numbers_matches_eager() -> None:
    found = compiled(lambda x: x + torch.linspace(-2, 2, 7, dtype=torch.uint8), torch.zeros(7))
    assert found(torch.zeros(7)).tolist() == [254, 212, 170, 128, 86, 44, 2]


LARGE = [0.5, 3.0, -7.25, 1e-35, 12345.678, 1.6e6, 1e9, 3e12, -1e25, 3e38, INF, NAN, -0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_large_numbers_match_eager(dtype: torch.dtype) -> None:
    """Remainders are exact for any quotient, where eager's vectors have nan for some."""
    a, b = pairs(LARGE, dtype)

    def calculated(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fmod(a, b), a % 3, a + b == b + a, a.sin(), a.cos(), a.tan()

    rest, thirds, is_equal, *waves = compiled(calculated, a, b)(a, b)
    assert torch.equal(is_equal, a + b == b + a)
    exact = [_rest(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    expected = torch.tensor(exact, dtype=dtype)
    torch.testing.assert_close(rest, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(rest.signbit(), expected.signbit() | rest.isnan() & rest.signbit())
    exact = [_rest(p, 3.0) for p in a.tolist()]
    expected = torch.tensor([r + 3 if r < 0 else r for r in exact], dtype=dtype)
    torch.testing.assert_close(thirds, expected, rtol=0, atol=0, equal_nan=True)
    wide = [f(a.double()).to(dtype) for f in (torch.sin, torch.cos, torch.tan)]
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(waves, wide, rtol=tolerance, atol=1e-15, equal_nan=True)


def _rest(a: float, b: float) -> float:
    return math.fmod(a, b) if b and math.isfinite(a) else NAN


NUMBERS = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_constant_folding_matches_eager(dtype: torch.dtype) -> None:
    """The compiler folds 3.0 < 0 to true, and 3.0 + -2 to 1.8e19, of a constant and an int."""
    numbers = [0, 3, -2, 2.5]

    def calculated(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        held = torch.full((2,), 3, dtype=dtype)
        results = [compare(held, number) for compare in COMPARISONS for number in numbers]
        if dtype not in (torch.bool, torch.uint8):
            results += [held + n for n in numbers] + [held - n for n in numbers]
            results += [held % n for n in numbers[1:]] + [held // n for n in numbers[1:]]
        return (x, *results)

    x = torch.ones(2)
    found = compiled(calculated, x)(x)
    assert all(map(same, found, calculated(x)))


def test_results_of_torch_sort_keep_their_type() -> None:
    x = torch.randn(4)
    assert type(compiled(torch.sort, x)(x)) is torch.return_types.sort


def test_every_op_has_one_rule() -> None:
    families = [value for value in vars(rules).values() if isinstance(value, ModuleType)]
    for kind in ("RULES", "EXPORTED"):
        tables = [vars(family).get(kind, {}) for family in families]
        assert sum(map(len, tables)) == len(set().union(*tables))


def _products_of_normalized_rows(*pairs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results = []
    for x, y in zip(pairs[::2], pairs[1::2], strict=True):
        normalized = torch.nn.functional.layer_norm(x, (x.shape[-1],))
        results += [normalized @ y, (x * x.sum(-1, keepdim=True)) @ y]
    return tuple(results)


@pytest.mark.sweep(1)
def test_batched_matmuls_of_normalized_rows_match_eager(drawn: Drawn) -> None:
    """Data tiling of IREE 3.13 gets 3, 7, 15 and 31 rows wrong, in all batches but the first."""
    counts = [*drawn((3, 7, 15, 31), 2), *drawn((1, 8, 20, 33), 1)]
    pairs = [t for rows in counts for t in (torch.randn(3, rows, 24), torch.randn(3, 24, 40))]
    found = compiled(_products_of_normalized_rows, *pairs)(*pairs)
    # Sums of 24 products that are as large as a hundred.
    torch.testing.assert_close(found, _products_of_normalized_rows(*pairs), rtol=1e-5, atol=1e-3)


def test_matmuls_of_strided_rows_and_columns_match_eager() -> None:
    """Data tiling of IREE 3.13 reads the elements beside it."""

    def products(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        linear = torch.nn.functional.linear(x[:, :1].t(), y, y[0])
        copied = x[:, 0].clone()
        return [
            *(x[:, 0] @ y, x.t()[1:2] @ y, y @ x[:, :1], linear),
            *(copied @ y, torch.addmm(y[:1], copied[None], y, beta=0.5, alpha=2), y @ copied),
        ]

    x, y = torch.randn(6, 2), torch.randn(6, 6)
    torch.testing.assert_close(compiled(products, x, y)(x, y), products(x, y))


def test_batched_matmuls_of_a_dynamic_number_of_rows_match_eager() -> None:
    x, y = torch.randn(3, 8, 24), torch.randn(3, 24, 40)
    shapes = {"args": ({1: Dim("rows", max=64)}, None)}
    artifact = compiled(_products_of_normalized_rows, x, y, dynamic_shapes=shapes)
    for rows in (2, 15, 16, 20, 33):
        x = torch.randn(3, rows, 24)
        expected = _products_of_normalized_rows(x, y)
        torch.testing.assert_close(artifact(x, y), expected, rtol=1e-5, atol=1e-3)


def test_constant_folding_matches_eager_under_torch_compile() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.full((2,), 3.0).lt(0) + torch.full((2,), 0.5) ** torch.full((), 2.0)

    x = torch.ones(2)
    report = turbine.explain(function, x)
    assert not report.left
    found = torch.compile(function, backend="turbine")(x)
    torch.testing.assert_close(found, function(x))


def integers(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes, and those between two bfloat16 numbers."""
    if dtype == torch.bool:
        return torch.tensor([False, True] * 20)
    info = torch.iinfo(dtype)
    powers = [2**n + m for n in range(8, 63) for m in (-1, 0, 1, 2 ** (n - 8), 3 * 2 ** (n - 8))]
    found = [info.min, info.max, *range(40), *powers, *(-power for power in powers)]
    return torch.tensor([n for n in found if info.min <= n <= info.max], dtype=dtype)


def test_integers_are_rounded_to_bfloat16_as_in_eager() -> None:
    dtypes = torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
    rows = [integers(dtype) for dtype in dtypes]
    args = *rows, torch.tensor(259)
    artifact = compiled(lambda *given: [x.to(torch.bfloat16) for x in given], *args)
    for found, given in zip(artifact(*args), args, strict=True):
        assert torch.equal(found, given.to(torch.bfloat16))
