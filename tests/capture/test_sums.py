"""Sums and reductions based on them are as accurate as eager."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import turbine
from tests import models
from tests.commit_seed import Drawn
from tests.compiled import compiled
from turbine.capture.staged_reductions import plan

Function = Callable[[Tensor], Tensor]

# Of rows whose mean is large beside their deviation.
FUNCTIONS: dict[str, Function] = {
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "sum of a prime number of elements": lambda x: x[:, :1021].sum(1),
    "sum of a few elements": lambda x: x[:, :48].sum(1),
    "sum over several axes": lambda x: x.unflatten(1, (16, 64)).sum((0, 2), keepdim=True),
    "mean": lambda x: x.mean(1),
    "var_mean": lambda x: torch.var_mean(x, 1)[1],
    "cumsum": lambda x: x.cumsum(1),
    "norm": lambda x: x.norm(dim=1),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "cosine similarity": lambda x: F.cosine_similarity(x, x.roll(1, 0)),
    "layer_norm": lambda x: F.layer_norm(x, (1024,), x[0], x[1]),
    "group_norm": lambda x: F.group_norm(x.unflatten(1, (8, 128)), 2, x[0, :8]),
    "batch_norm": lambda x: F.batch_norm(x.unflatten(1, (8, 128)), None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x.unflatten(1, (2, 512))),
    "avg_pool2d": lambda x: F.avg_pool2d(x.view(-1, 1, 32, 32), 32),
}
# One compiler rounds at other places than another.
_TIMES_EAGERS_ERROR = 3.0


@pytest.mark.run
@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_are_as_accurate_as_eager(dtype: torch.dtype, drawn: Drawn) -> None:
    torch.manual_seed(0)
    x = (torch.rand(48, 1024) + 1).to(dtype)
    assert _far_ones({name: FUNCTIONS[name] for name in drawn(FUNCTIONS, 10)}, x) == []


@pytest.mark.run
def test_sums_of_dynamic_sizes_are_as_accurate_as_eager() -> None:
    torch.manual_seed(0)
    x = torch.rand(1021, 40) + 1
    names = ("sum of rows", "sum of columns", "sum of all", "mean", "cumsum")
    assert _far_ones({name: FUNCTIONS[name] for name in names}, x, dynamic=True) == []


@pytest.mark.run
def test_batch_norm_gradients_of_small_batches_are_as_accurate_as_eager() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 16, 8, 8) + 3 * torch.randn(16, 1, 1)
    along = torch.randn_like(x)
    call = compiled(_batch_norm)

    def gradient(x: Tensor, of: Callable[[Tensor, Tensor], Tensor] = _batch_norm) -> Tensor:
        weight = torch.ones(16, dtype=x.dtype, requires_grad=True)
        (of(x, weight) * along).sum().backward()
        assert weight.grad is not None
        return weight.grad

    assert not _is_far(gradient(x, call), gradient, x)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [([8, 1024], [1]), ([1024, 1024], [0, 1]), ([8, 64, 56, 56], [0, 2, 3]), ([7, 100, 3], [1])],
    ids=str,
)
@pytest.mark.parametrize("merge", [True, False])
def test_stages_add_short_chains(shape: list[int], axes: list[int], merge: bool) -> None:
    x = torch.rand(shape, dtype=torch.float64)
    stages = plan(shape, axes, merge=merge)
    assert stages is not None
    reduced = x
    for view, along in stages:
        reduced = reduced.reshape(view)
        assert prod(view[axis] for axis in along) <= 64
        reduced = reduced.sum(along)
    torch.testing.assert_close(reduced.flatten(), x.sum(axes).flatten())


def test_reductions_of_single_numbers_match_eager() -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [x.sum(0), x.sum(-1, keepdim=True), x.amax(0), x.amin(), x.mean(-1), x.sum() + 1]

    x = torch.tensor(1.5)
    torch.testing.assert_close(compiled(function)(x), function(x))


@pytest.mark.parametrize("count", [1 << 15, 3 << 15, 40_001])
@pytest.mark.parametrize("test", [torch.all, torch.any])
def test_tests_of_many_elements(test: Any, count: int) -> None:
    x = torch.full((count,), test is torch.all)
    artifact = turbine.aot.export(models.Fn(test), args=(x,)).compile()
    assert artifact(x) == test(x)
    x[-1] = not x[-1]
    assert artifact(x) == test(x)


def test_an_axis_without_divisors_has_no_stages() -> None:
    assert plan([4, 1021], [1], merge=True) is None


def test_sums_that_run_in_pytorch_stay_whole() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.bernoulli(x), x.sum(0)

    (graph,) = turbine.explain(function, torch.ones(1024, 8)).graphs
    assert [one.op for one in graph.left][1:] == ["aten.sum.dim_IntList"]


def _batch_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, training=True)


def _far_ones(functions: dict[str, Function], x: Tensor, **options: Any) -> list[str]:
    """The functions whose compiled results are far off, all compiled at once."""
    call = compiled(lambda x: [f(x) for f in functions.values()], **options)
    found = zip(functions.items(), call(x), strict=True)
    return [name for (name, function), result in found if _is_far(result, function, x)]


def _is_far(found: Tensor, function: Function, x: Tensor) -> bool:
    exact = function(x.double())
    last_place = torch.finfo(found.dtype).eps
    allowed = max(_TIMES_EAGERS_ERROR * _distance(function(x), exact), last_place)
    return not _distance(found, exact) <= allowed


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())
