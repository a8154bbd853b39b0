"""Graphs that take less time in PyTorch than a call of compiled code; times are fixed."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine
from turbine.dynamo import calibration, graph_autotuning, small_graphs
from turbine.dynamo.calibration import Seconds
from turbine.dynamo.records import LeftOp

programs = pytest.mark.sweep(1, "programs")


@pytest.fixture(autouse=True)
def compile_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_autotuning, "can_benchmark", lambda graph: False)


def four_ops(x: Tensor) -> Tensor:
    return torch.tanh((x + 1) * 2) - x


def many_ops(x: Tensor) -> Tensor:
    for _ in range(8):
        x = four_ops(x)
    return x


def reasons(function: Callable[..., Any], x: Tensor, choice: str = "auto") -> set[str]:
    torch.compiler.reset()
    with turbine.config.override(library_calls=choice):
        report = turbine.explain(function, x)

    def reason(op: LeftOp) -> str:
        return op.reason

    return set(map(reason, report.left))


@pytest.fixture
def call_takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Fix the time of a call, in small ops; an op takes 5 us."""

    def fix(ops: float) -> None:
        seconds = Seconds(1.0, ops * 5e-6, 4 * 5e-6)
        monkeypatch.setattr(calibration, "measure_once", lambda kind, make: seconds)

    return fix


def test_few_small_ops_run_in_pytorch(call_takes: Callable[[float], None]) -> None:
    call_takes(10)
    x = torch.randn(64, requires_grad=True)
    assert reasons(four_ops, x) == {small_graphs.REASON}
    with turbine.config.override(library_calls="auto"):
        compiled = torch.compile(four_ops, backend="turbine")
        torch.testing.assert_close(compiled(x), four_ops(x))
        compiled(x).sum().backward()
    assert x.grad is not None


@programs
def test_many_ops_and_large_tensors_are_compiled(call_takes: Callable[[float], None]) -> None:
    call_takes(10)
    assert reasons(many_ops, torch.randn(64)) == set()
    assert reasons(four_ops, torch.randn(1 << 20)) == set()
    assert reasons(torch.tanh, torch.randn(1 << 20)) == set()
    assert reasons(four_ops, torch.randn(64), "never") == set()


@programs
def test_ops_that_run_many_others_are_compiled(call_takes: Callable[[float], None]) -> None:
    call_takes(10)
    layer = torch.nn.LSTM(4, 4).requires_grad_(False)
    assert small_graphs.REASON not in reasons(layer, torch.randn(9, 2, 4))

    def branch(x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, many_ops, torch.neg, (x,))
        return result

    assert small_graphs.REASON not in reasons(branch, torch.randn(64))


def test_a_fast_call_is_compiled(call_takes: Callable[[float], None]) -> None:
    call_takes(-6)  # what is around a call takes as long as six ops
    assert reasons(four_ops, torch.randn(64)) == set()


def test_graphs_run_in_pytorch_where_nothing_compiles(call_takes: Callable[[float], None]) -> None:
    call_takes(inf)
    assert reasons(many_ops, torch.randn(64)) == {small_graphs.REASON}


def test_the_example_is_measured() -> None:
    seconds = calibration.measure(small_graphs.KIND, small_graphs.make_example)
    assert seconds.is_complete
