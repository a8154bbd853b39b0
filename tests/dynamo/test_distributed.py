"""DDP and FSDP2 around compiled code; collectives fall back to PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from tests import torchrun
from tests.dynamo import distributed_program
from turbine.capture.partition import partition

pytestmark = pytest.mark.run

PROCESSES = 2

Outcomes = list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What each process made of each job, with an agent for each, as on two machines."""
    folder = tmp_path_factory.mktemp("distributed")
    with torchrun.agents(folder, Path(distributed_program.__file__), str(folder)) as started:
        torchrun.wait(folder, started)
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.mark.parametrize("job", ["replicated", "sharded"])
def test_two_processes_train_like_one(outcomes: Outcomes, job: str) -> None:
    model = distributed_program.net()
    expected_losses, expected_weights = distributed_program.train(model, model, rank=0, world=1)
    shares = [rank[job][0][0] for rank in outcomes]
    losses = [sum(step) / PROCESSES for step in zip(*shares, strict=True)]
    torch.testing.assert_close(losses, expected_losses, rtol=1e-4, atol=0)
    for rank in outcomes:
        torch.testing.assert_close(rank[job][0][1], expected_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("job", ["replicated", "sharded"])
def test_both_directions_are_compiled_in_every_process(outcomes: Outcomes, job: str) -> None:
    for rank in outcomes:
        _, parts, left = rank[job]
        assert parts >= 2
        assert left == []


def test_collectives_inside_a_graph_fall_back(outcomes: Outcomes) -> None:
    for rank in outcomes:
        (found, expected), parts, left = rank["collectives"]
        torch.testing.assert_close(found, expected)
        assert parts == 3
        assert {op.split(".")[0] for op in left} == {"_c10d_functional"}


def test_collectives_start_in_program_order() -> None:
    # Processes that split their graphs differently would otherwise wait for one another.
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4)
    chain = x
    for _ in range(3):
        chain = _call(graph, torch.ops.aten.sin.default, chain)
    late = _call(graph, torch.ops._c10d_functional.all_reduce.default, chain, "sum", "0")
    early = _call(graph, torch.ops._c10d_functional.all_reduce.default, x, "max", "0")
    graph.output((late, early))
    whole = fx.GraphModule(torch.nn.Module(), graph)
    split = partition(whole, lambda node: node.target is torch.ops.aten.sin.default)
    order = [node.args[1] for node in split.outer.graph.nodes if node.op == "call_function"]
    assert [reduction for reduction in order if reduction in ("sum", "max")] == ["sum", "max"]


def _call(graph: fx.Graph, op: Any, *args: Any) -> fx.Node:
    node = graph.call_function(op, args)
    node.meta["val"] = torch.empty(4)
    return node
