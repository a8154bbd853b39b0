"""Indices out of range fail as in eager PyTorch; no access is out of bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import turbine
from tests.compiled import agrees
from tests.compiled import compiled as dynamo_compiled
from tests.models import Fn, compiled

pytestmark = pytest.mark.sweep(2)

aten = torch.ops.aten

TABLE = torch.arange(40.0).reshape(10, 4)
CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "embedding": lambda i: torch.nn.functional.embedding(i, TABLE),
    "index": lambda i: TABLE[i],
    "two axes": lambda i: TABLE[i, torch.tensor([0, 1, 2])],
    "index_select": lambda i: TABLE.index_select(0, i),
    "gather": lambda i: TABLE.gather(0, i.unsqueeze(1)),
    "scatter": lambda i: torch.zeros(10, 1).scatter(0, i.unsqueeze(1), 1.0),
    "index_put": lambda i: torch.zeros(10).index_put((i,), torch.ones(3)),
    "index_add": lambda i: TABLE.index_add(0, i, torch.ones(3, 4)),
    "index_copy": lambda i: TABLE.index_copy(0, i, torch.ones(3, 4)),
    "index_copy, inner axis": lambda i: TABLE.t().contiguous().index_copy(1, i, torch.ones(4, 3)),
    "index_put, inner axis": lambda i: aten.index_put(
        TABLE.t().contiguous(), [None, i], torch.ones(4, 3)
    ),
    "index_fill": lambda i: TABLE.index_fill(0, i, 1.0),
    "index_reduce": lambda i: TABLE.index_reduce(0, i, torch.ones(3, 4), "amax"),
    "scatter_add": lambda i: TABLE.scatter_add(-2, i.unsqueeze(1), torch.ones(3, 1)),
    "take": lambda i: TABLE[:, 0].take(i),
    "put": lambda i: torch.zeros(10).put(i, torch.ones(3)),
    "max_unpool2d": lambda i: F.max_unpool2d(
        torch.ones(2, 1, 3), i.expand(2, 1, 3), (2, 3), (2, 3), output_size=(1, 10)
    ),
}


def test_an_index_into_an_empty_tensor_is_an_error() -> None:
    x, good, bad = torch.zeros(33, 0), torch.tensor([3]), torch.tensor([33])
    artifact = compiled(lambda x, i: x.index_select(0, i), x, good)
    assert artifact(x, good).shape == (1, 0)
    with pytest.raises(turbine.errors.TurbineError):
        artifact(x, bad)


# PyTorch refuses -1 here.
FROM_START_ONLY = {
    "embedding",
    "index_select",
    "gather",
    "scatter",
    "scatter_add",
    "index_add",
    "index_copy",
    "index_copy, inner axis",
    "index_reduce",
    "max_unpool2d",
}


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")  # in beta, PyTorch says
@pytest.mark.sweep(1)
@pytest.mark.parametrize("case", CASES)
def test_an_index_out_of_range_is_an_error_and_later_calls_work(case: str) -> None:
    good = torch.tensor([1, 0, 9])
    artifact = compiled(CASES[case], good)
    torch.testing.assert_close(artifact(good), CASES[case](good))
    for bad in (10, 10**6, -(10**9), *([-1] if case in FROM_START_ONLY else [])):
        with pytest.raises(turbine.errors.RunError, match="index out of range"):
            artifact(torch.tensor([1, bad, 9]))
    torch.testing.assert_close(artifact(good), CASES[case](good))


@pytest.mark.parametrize("strategy", ["tiled-O2", "plain", "plain-O0"])
def test_every_strategy_checks_indices(strategy: str) -> None:
    with turbine.config.override(strategy=strategy):
        artifact = compiled(lambda i: TABLE[i], torch.tensor([1, 2, 3]))
    with pytest.raises(turbine.errors.RunError, match="index out of range"):
        artifact(torch.tensor([1, 10, 3]))


def test_negative_indices_count_from_the_end() -> None:
    i = torch.tensor([-1, -10, 3])
    torch.testing.assert_close(compiled(CASES["index"], i)(i), TABLE[i])


def _write(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Every kind of write by indices that may count from the end, and one read."""
    y = x.clone()
    y[[-1]] = 1.0
    return (
        y,
        x.index_put((i,), v),
        x.index_put((i,), v, accumulate=True),
        aten.index_put(x, [None, i], v[:, :1].t(), True),
        x.index_put((i, i), v[:, 0]),
        x.index_put((i.to(torch.int32),), v),
        x.index_fill(0, i, 2.0),
        x.index_fill(-1, i, 2.0),
        x.put(i, v[:, 0]),
        x.put(i, v[:, 0], accumulate=True),
        x.take(i) + i[i // 2].to(x.dtype),
    )


WRITES = (TABLE, torch.tensor([-1, 0, -4]), torch.randn(3, 4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_negative_indices_count_from_the_end_under_torch_compile(dynamic: bool) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        return x[..., [-2], :] * x[:, [-1, 0]].sum()

    agrees(_write, lambda: (*(t.clone() for t in WRITES),), ops=10, dynamic=dynamic)
    agrees(gradient, lambda: (TABLE.clone().requires_grad_(),), ops=4, dynamic=dynamic)


def test_bad_indices_raise_what_eager_raises_under_torch_compile() -> None:
    def write(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, i, torch.ones(2, 4)).index_put((i,), x[:2]) * 2

    function = dynamo_compiled(write)
    good = torch.tensor([1, 2])
    torch.testing.assert_close(function(TABLE, good), write(TABLE, good))
    for bad in ([1, -1], [10, 1], [-11, 0]):
        with pytest.raises(IndexError):
            function(TABLE, torch.tensor(bad))


def test_an_index_into_an_empty_axis_is_an_error() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x.index_put((i,), torch.ones(()))

    args = (torch.arange(6.0), torch.tensor([0, 1]))
    output = turbine.aot.export(Model(), args=args, dynamic_shapes=({0: Dim("n", max=9)}, None))
    with pytest.raises(turbine.errors.TurbineError):
        output.compile()(torch.ones(0), torch.tensor([-1, -1]))


def test_indices_into_dynamic_sizes_are_checked() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[i]

    args = (torch.arange(6.0), torch.tensor([0, 1]))
    output = turbine.aot.export(Model(), args=args, dynamic_shapes=({0: Dim("n", max=50)}, None))
    artifact = output.compile()
    torch.testing.assert_close(
        artifact(torch.arange(9.0), torch.tensor([8, -9])), torch.tensor([8.0, 0])
    )
    with pytest.raises(turbine.errors.RunError, match="index out of range"):
        artifact(torch.arange(7.0), torch.tensor([7, 0]))


def test_sizes_assumed_by_the_trace_are_checked() -> None:
    class Pairs(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2)

    output = turbine.aot.export(Pairs(), args=(torch.ones(6),), dynamic_shapes=({0: Dim.DYNAMIC},))
    artifact = output.compile()
    assert artifact(torch.ones(8)).shape == (4, 2)
    with pytest.raises(turbine.errors.ArgumentError, match=r"needs x.shape\[0\] % 2 == 0"):
        artifact(torch.ones(7))


def test_positions_computed_by_the_model_are_not_checked() -> None:
    text = turbine.aot.export(
        Fn(lambda x: x + TABLE[torch.arange(3)].sum()), args=(torch.ones(3),)
    ).text()
    assert "assert" not in text


MASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "one number": lambda x, mask: x.index_put((mask,), torch.tensor(2.0)),
    "a row": lambda x, mask: x.index_put((mask,), torch.arange(3.0)),
    "a row added": lambda x, mask: x.index_put((mask,), torch.arange(3.0)[None], True),
    "a row for each": lambda x, mask: x.index_put((mask,), torch.arange(9.0).view(3, 3)),
    "a number for each": lambda x, mask: x.index_put((mask,), torch.arange(3.0)[:, None]),
    "elements": lambda x, mask: x.index_put((x > 0,), torch.tensor(-1.0)),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MASKED)
def test_writes_with_a_mask_match_eager(name: str) -> None:
    x, mask = torch.randn(4, 3), torch.tensor([True, False, True, True])
    expected = MASKED[name](x, mask)
    function = torch.compile(MASKED[name], backend="turbine", dynamic=name != "elements")
    torch.testing.assert_close(function(x, mask), expected, rtol=0, atol=0)


def test_indices_of_empty_writes_are_not_checked() -> None:
    agrees(
        lambda x, i: x.index_fill(0, i, 1), lambda: (torch.randn(2, 0), torch.tensor([5])), ops=0
    )


def test_a_write_to_a_dynamic_number_of_rows_matches_eager() -> None:
    """The write covers the whole tensor; the compiler dropped it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x[:, [2, 12, 9]].clone()
        y[:, 2] = -1
        return y

    x = torch.randn(5, 16)
    found = dynamo_compiled(function, dynamic=True)(x)
    torch.testing.assert_close(found, function(x), rtol=0, atol=0)


def test_a_write_keeps_the_strides_that_a_later_view_needs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        filled = x.clone().index_fill_(-1, torch.tensor([0]), 2.0)
        return torch.kron(filled, x)

    x = torch.randn(1, 8, 1)
    torch.testing.assert_close(dynamo_compiled(function)(x), function(x))


@pytest.mark.parametrize(("shape", "index"), [((2, 0, 5), []), ((2, 3, 0), [1]), ((0, 3, 5), [1])])
def test_writes_along_an_inner_axis_of_an_empty_tensor(
    shape: tuple[int, ...], index: list[int]
) -> None:
    x, i = torch.zeros(shape), torch.tensor(index, dtype=torch.int64)
    values = torch.ones(shape[0], len(index), shape[2])

    def write(x: torch.Tensor, i: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        written: torch.Tensor = aten.index_put(x, [None, i], values)
        return written

    torch.testing.assert_close(compiled(write, x, i, values)(x, i, values), write(x, i, values))


EXPANDED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "expanded": lambda x, i: F.embedding(i.expand(x.shape[0], -1), TABLE),
    "repeated": lambda x, i: F.embedding(i.repeat(x.shape[0], 1), TABLE),
    "gathered": lambda x, i: x.gather(1, i.expand(x.shape[0], -1)),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_indices_expanded_along_a_dynamic_batch_are_checked(name: str) -> None:
    shapes = (({0: Dim.DYNAMIC}, None),)
    good, bad = torch.tensor([[0, 3, 9]]), torch.tensor([[0, 10, 1]])
    artifact = compiled(EXPANDED[name], torch.randn(2, 10), good, dynamic_shapes=shapes)
    assert artifact.manifest["strategy"] != "isolated"
    x = torch.randn(5, 10)
    torch.testing.assert_close(artifact(x, good), EXPANDED[name](x, good))
    with pytest.raises(turbine.errors.TurbineError, match="out of range"):
        artifact(x, bad)


def test_a_constant_index_expanded_along_a_dynamic_batch_is_checked_at_compile_time() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.embedding(torch.tensor([[1, 2, 9]]).expand(x.shape[0], -1), TABLE)

    shapes = (({0: Dim.DYNAMIC},),)
    output = turbine.aot.export(Fn(function), args=(torch.randn(2),), dynamic_shapes=shapes)
    assert "_assert_async" not in output.program.graph.code
