"""A value that one op reads at two different indices is materialized first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy

from tests.compiled import compiled as under_torch_compile
from tests.models import compiled
from turbine.capture.crossed_reads import find_crossed_reads

Function = Callable[[Tensor], Tensor]


def outer(s: Tensor) -> Tensor:
    return s[:, None] * s[None, :]


FUNCTIONS: dict[str, Function] = {
    "sum": lambda x: outer(x.sum(-1)),
    "other axis": lambda x: outer(x.sum(0)),
    "index of the largest": lambda x: outer(x.argmax(-1)),
    "one of two results": lambda x: outer(x.max(-1)[0]),
    "differences": lambda x: (s := x.amax(-1))[:, None] - s,
    "distances": lambda x: (s := (x * x).sum(-1))[:, None] + s[None, :] - 2 * x @ x.T,
    "comparison": lambda x: ((s := x.sum(-1))[:, None] > s[None, :]).float(),
    "by way of functions": lambda x: x.sum(-1).sigmoid()[:, None] + x.sum(-1).tanh() * 2,
    "mean and sum": lambda x: x.mean(-1)[:, None] * x.sum(-1)[None, :],
    "deviation and mean": lambda x: x.std(-1)[:, None] * x.mean(-1)[None, :],
    "transposed": lambda x: (s := torch.softmax(x @ x.T, -1)) + s.T,
    "batched": lambda x: (s := x.reshape(2, -1, 4).sum(-1))[:, :, None] * s[:, None, :],
    "complex": lambda x: torch.complex((s := x.sum(-1))[:, None].expand(64, 64), s.expand(64, 64)),
    "product": lambda x: outer(x @ x[0]),
    "diagonal": lambda x: (s := torch.log_softmax(x.reshape(16, 32)[:, :16], -1)) + s.diagonal(),
    "a sum and one that keeps its axis": lambda x: x.sum(1, keepdim=True) * x.sum(1),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_value_combined_with_its_transpose_matches_eager(name: str) -> None:
    x = torch.randn(64, 8)
    found = under_torch_compile(FUNCTIONS[name])(x)
    torch.testing.assert_close(found, FUNCTIONS[name](x), rtol=1e-4, atol=1e-4)


def test_a_value_combined_with_its_transpose_matches_eager_for_dynamic_sizes() -> None:
    artifact = compiled(FUNCTIONS["sum"], torch.randn(5, 3), dynamic_shapes=(({0: Dim.AUTO},),))
    for size in (5, 70):
        x = torch.randn(size, 3)
        torch.testing.assert_close(artifact(x), FUNCTIONS["sum"](x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(-1) * x.sum(-1).sigmoid(),
        lambda x: torch.softmax(x, -1) * x,
        lambda x: (x - x.mean(-1, keepdim=True)) * x.var(-1, keepdim=True),
        lambda x: x[:, None] * x[None, :],
        lambda x: torch.arange(4)[:, None] * torch.arange(4) + x.sum(),
    ],
)
def test_values_read_at_one_index_are_fused(function: Function) -> None:
    graph = make_fx(function, tracing_mode="fake")(torch.randn(4, 4)).graph
    assert not find_crossed_reads(graph)


def test_deep_graphs_are_analyzed_quickly() -> None:
    def function(x: Tensor) -> Tensor:
        x = x @ x
        for _ in range(60):
            x = x + x.T
        return x

    graph = make_fx(function, tracing_mode="fake")(torch.randn(4, 4)).graph
    assert [node.target for node in find_crossed_reads(graph)] == [torch.ops.aten.mm.default]


def test_gradients_of_a_loss_over_rows_and_columns_match_eager() -> None:
    """The loss of contrastive training, whose gradient has two equal scatters."""

    def loss(scores: Tensor) -> Tensor:
        own = torch.arange(len(scores))
        both = cross_entropy(scores, own) + cross_entropy(scores.T, own)
        return both / 2

    scores = torch.randn(8, 8, requires_grad=True)
    (found,) = torch.autograd.grad(under_torch_compile(loss)(scores), scores)
    (expected,) = torch.autograd.grad(loss(scores), scores)
    torch.testing.assert_close(found, expected)
