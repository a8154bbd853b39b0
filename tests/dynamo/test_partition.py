"""Partitioning of graphs: few parts, no cycles, effects in order. No compiler."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from turbine.capture import support
from turbine.capture.partition import Partition, is_compute, partition

aten = torch.ops.aten


def split(function: Callable[..., Any], *refused: Any, cut: int | None = None) -> Partition:
    """A function of two vectors, partitioned with some ops left to PyTorch."""
    graph = make_fx(function, tracing_mode="fake")(torch.ones(4), torch.ones(4))
    result = partition(graph, lambda node: node.target not in refused, cut=cut)
    x, y = torch.randn(4), torch.randn(4)
    torch.manual_seed(0)
    expected = function(x.clone(), y.clone())
    torch.manual_seed(0)
    torch.testing.assert_close(result.outer(x.clone(), y.clone()), expected)
    result.outer.graph.lint()
    return result


def ops_of(graph: fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if is_compute(node)]


def outside(result: Partition) -> list[str]:
    """PyTorch's ops and the parts, in the order they run."""
    named = {"call_module", "call_function"}
    nodes = [n for n in result.outer.graph.nodes if n.op in named]
    return [str(n.target) for n in nodes if n.target is not operator.getitem]


def three(x: Tensor) -> Tensor:
    """Enough ops to be worth a part."""
    return torch.exp(x * 2) + 1


def test_compilable_ops_form_one_part() -> None:
    result = split(lambda x, y: (three(x) + three(y),))
    assert outside(result) == ["part_0"]


def test_a_graph_of_one_op_is_a_part() -> None:
    assert outside(split(lambda x, y: (x + y,))) == ["part_0"]


def test_a_fallback_in_the_middle_makes_two_parts() -> None:
    result = split(lambda x, y: (three(torch.erf(three(x))),), aten.erf.default)
    assert outside(result) == ["part_0", "aten.erf.default", "part_1"]


def test_branches_beside_a_fallback_add_no_parts() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        left = torch.erf(three(x))
        return (three(left) + three(y),)

    assert len(split(function, aten.erf.default).parts) == 2


def test_a_diamond_around_a_fallback_makes_no_cycle() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        start = three(x)
        # One part with both sides of this op would wait for itself.
        return (three(torch.erf(start) + start) * start,)

    result = split(function, aten.erf.default)
    assert outside(result) == ["part_0", "aten.erf.default", "part_1"]


def test_many_independent_fallbacks_make_two_parts() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        total = three(x)
        for index in range(5):
            total = total + torch.erf(x * index)
        return (total,)

    assert len(split(function, aten.erf.default).parts) <= 2


def test_isolated_cheap_ops_fall_back() -> None:
    result = split(lambda x, y: (torch.erf(x * 2) + 1,), aten.erf.default)
    assert result.parts == {}
    assert outside(result) == ["aten.mul.Tensor", "aten.erf.default", "aten.add.Tensor"]


def test_graphs_of_fallbacks_have_no_parts() -> None:
    result = split(lambda x, y: (x * 2,), aten.mul.Tensor)
    assert result.parts == {}


def test_views_are_duplicated_in_parts_and_fallbacks() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        square = three(x).view(2, 2).t()
        return (torch.erf(square), torch.exp(square) * square + 1)

    result = split(function, aten.erf.default)
    (part,) = result.parts.values()
    inside = [node.target for node in part.graph.graph.nodes]
    assert aten.t.default in inside
    # The view itself does not cross: what it is a view of does.
    assert next(node.target for node in part.results) is aten.add.Tensor
    assert [n.target for n in result.outer.graph.nodes].count(aten.t.default) == 1


def test_results_may_be_inputs_views_or_constants() -> None:
    result = split(lambda x, y: (x, y.view(2, 2), three(x), torch.zeros(2)))
    assert outside(result).count("part_0") == 1


def test_ops_with_several_results_are_not_split() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        value, index = torch.max(three(x), 0)
        return (torch.erf(value), index, three(value))

    result = split(function, aten.erf.default)
    (part,) = result.parts.values()
    assert "aten.max.dim" in ops_of(part.graph.graph)
    assert all(node.target is not aten.max.dim for node in part.results)


def test_parts_use_results_of_multi_output_fallbacks() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        value, index = torch.max(three(x), 0)
        return (three(value), index)

    result = split(function, aten.max.dim)
    assert outside(result) == ["part_0", "aten.max.dim", "part_1"]


def test_random_numbers_are_drawn_in_program_order() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        # Nothing but order ties the second draw to the first, which needs a part.
        first = torch.bernoulli(torch.sigmoid(three(x)))
        second = torch.rand(4)
        return (three(first) + second,)

    result = split(function)
    drawn = [op for op in outside(result) if op.startswith(("aten.bern", "aten.rand"))]
    assert drawn == ["aten.bernoulli.default", "aten.rand.default"]


def test_reads_stay_before_later_writes() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        before = three(y)
        y.add_(10)
        after = three(y)
        return (before, after, y)

    steps = outside(split(function))
    assert steps.index("part_0") < steps.index("aten.add_.Tensor") < steps.index("part_1")


def test_a_cut_splits_a_part() -> None:
    result = split(lambda x, y: (three(three(three(x))),), cut=4)
    first, second = result.parts.values()
    assert len(ops_of(first.graph.graph)) == 4
    assert len(ops_of(second.graph.graph)) == 5


def test_values_are_freed_after_their_last_use() -> None:
    result = split(lambda x, y: (three(torch.erf(three(x))),), aten.erf.default)
    code = result.outer.code
    assert "erf = None" in code


def value_node(dtype: torch.dtype = torch.float32, **facts: Any) -> fx.Node:
    with FakeTensorMode():
        value = torch.empty(4, dtype=dtype, **facts)
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(aten.relu.default, (x,))
    x.meta["val"] = node.meta["val"] = value
    return node


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (value_node(device="meta"), "device meta"),
        (value_node(torch.float4_e2m1fn_x2), "dtype"),
    ],
    ids=["device", "dtype"],
)
def test_unsupported_values_have_an_obstacle(node: fx.Node, reason: str) -> None:
    assert reason in (support.obstacle(node) or "")


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (aten.kthvalue.default, "other numbers"),
        (aten.rand.default, "random"),
        (aten.add_.Tensor, "changes its argument"),
        (aten.as_strided.default, "no definition"),
        (aten.linalg_cholesky_ex.default, "no definition"),
        (operator.pow, "not an op of the compiler"),
    ],
    ids=str,
)
def test_unsupported_ops_have_an_obstacle(op: Any, reason: str) -> None:
    node = fx.Graph().call_function(op, ())
    assert reason in (support.obstacle(node) or "")


def test_supported_ops_have_no_obstacle() -> None:
    assert support.obstacle(value_node()) is None
