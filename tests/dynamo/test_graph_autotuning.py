"""The first call of a graph times it beside PyTorch, without a trace, and the faster is kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine.dynamo import calibration, graph_autotuning, records
from turbine.dynamo.calibration import Seconds
from turbine.dynamo.entry import backend


@pytest.fixture(autouse=True)
def forget_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.compiler.reset()
    monkeypatch.setenv("TURBINE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibration, "KNOWN", {})
    monkeypatch.setattr("turbine.dynamo.small_graphs.is_small", lambda graph: False)
    # Of single ops: all are compiled.
    monkeypatch.setattr(calibration, "measure_once", lambda kind, make: Seconds(1.0, 1.0, 9.0))


def compiled(function: Any) -> Any:
    return torch.compile(function, backend=partial(backend, options={"library_calls": "auto"}))


def fix(monkeypatch: pytest.MonkeyPatch, faster: str) -> list[int]:
    """Let one side win, after a trial; return the number of calls of each trial."""
    trials: list[int] = []
    measure = graph_autotuning._measure

    def decide(calls: Any, args: Any, mutated: Any) -> Seconds:
        assert measure(calls, args, mutated).is_complete
        trials.append(len(args))
        return Seconds(1.0, 2.0, 1.0) if faster == "PyTorch" else Seconds(1.0, 1.0, 2.0)

    monkeypatch.setattr(graph_autotuning, "_measure", decide)
    return trials


def scale(x: Tensor) -> Tensor:
    return (x.exp() * 2 + 1).sum(0)


@pytest.mark.parametrize("faster", ["PyTorch", "compiled"])
def test_the_faster_side_is_kept(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    trials = fix(monkeypatch, faster)
    x = torch.randn(7, 9)
    call = compiled(scale)
    with records.collect() as graphs:
        for _ in range(3):
            torch.testing.assert_close(call(x), scale(x))
    assert len(trials) == 1
    kept = [graph.kind for graph in graphs if not graph.is_dropped]
    assert kept == ["eager" if faster == "PyTorch" else "inference"]


def test_explain_says_why_pytorch_runs_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    fix(monkeypatch, "PyTorch")
    with turbine.config.override(library_calls="auto"):
        report = turbine.explain(scale, torch.randn(7, 9))
    assert [graph.kind for graph in report.graphs] == ["eager"]
    assert {op.reason for op in report.left} == {
        "PyTorch runs the graph faster: in 1e+03 ms, compiled in 2e+03 ms"
    }
    assert "4 library calls, 0 fallbacks" in str(report)


def test_times_are_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = fix(monkeypatch, "PyTorch")
    x = torch.randn(7, 9)
    for _ in range(2):
        torch.compiler.reset()
        calibration.KNOWN.clear()
        compiled(scale)(x)
    assert len(trials) == 1
    compiled(scale)(torch.randn(7, 9, dtype=torch.float64))
    assert len(trials) == 2
    # They are those of graphs, not of kinds of calls.
    assert not any(kind.startswith(calibration.GRAPH) for kind in calibration.read_all())


class Noisy(nn.Module):
    """It draws numbers, counts, and keeps statistics."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.linear = nn.Linear(16, 16)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return nn.functional.dropout(self.norm(self.linear(x)), 0.5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("faster", ["PyTorch", "compiled"])
def test_a_trial_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    trials = fix(monkeypatch, faster)
    torch.manual_seed(0)
    model = Noisy()
    twin = copy.deepcopy(model)
    x = torch.randn(8, 16, requires_grad=True)
    y = x.detach().clone().requires_grad_()

    def step(module: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        return (module(batch) ** 2).sum()

    losses = []
    for call, batch in ((compiled(model), x), (twin, y)):
        torch.manual_seed(1)
        for _ in range(3):
            loss = step(call, batch)
            loss.backward()
        losses.append(loss.detach())
    assert trials
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    grads = [[p.grad for p in module.parameters()] for module in (model, twin)]
    # A gradient that a trial had added to would be larger by half.
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)


def test_an_error_of_the_user_is_raised_once_and_later_calls_work() -> None:
    table, calls = torch.randn(5, 3), compiled(lambda table, index: table[index] * 2 + 1)
    with pytest.raises(IndexError):
        calls(table, torch.tensor([9]))
    index = torch.tensor([4])
    torch.testing.assert_close(calls(table, index), table[index] * 2 + 1)


def test_graphs_with_effects_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = fix(monkeypatch, "PyTorch")
    seen: list[int] = []

    def watch(x: Tensor) -> Tensor:
        seen.append(1)
        return x.clone()

    with torch.library._scoped_library("autotuning_test", "FRAGMENT") as library:
        library.define("watch(Tensor x) -> Tensor")
        library.impl("watch", watch, "CPU")
        library.impl("watch", torch.empty_like, "Meta")
        x = torch.randn(4)
        compiled(lambda x: torch.ops.autotuning_test.watch(x) * 2 + 1)(x)
    assert seen == [1]
    assert not trials


def test_sparse_tensors_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = fix(monkeypatch, "PyTorch")
    x = torch.eye(4).to_sparse()
    torch.testing.assert_close(compiled(lambda x: (x @ x.to_dense()) * 2)(x), 2 * torch.eye(4))
    assert not trials


@pytest.mark.sweep(1)
@pytest.mark.parametrize("faster", ["PyTorch", "compiled"])
def test_an_optimizer_steps_once(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    trials = fix(monkeypatch, faster)
    weight = nn.Parameter(torch.ones(300, 300))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.25, momentum=0.5)
    optimizer.step()
    compiled(optimizer.step)()
    assert trials
    torch.testing.assert_close(weight.detach(), torch.full((300, 300), 1 - 0.25 * (1 + 1.5)))
