"""`turbine.explain` reports the compilation of a function, `turbine.counters` the totals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import turbine
from turbine.dynamo.graphs import place_of
from turbine.dynamo.report import CompileReport


def mixed(x: Tensor) -> Tensor:
    y: Tensor = x * 2 * x + 1
    y = torch.linalg.cholesky(y)  # has no lowering
    return y * 2 * y + 1


@pytest.fixture(scope="module")
def report() -> CompileReport:
    return turbine.explain(mixed, torch.eye(3, requires_grad=True))


def test_forward_and_backward_are_graphs(report: CompileReport) -> None:
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"]


def test_fallbacks_have_a_reason_and_a_source_line(report: CompileReport) -> None:
    (left,) = (op for op in report.graphs[0].left if op.op == "aten.linalg_cholesky_ex.default")
    lines = Path(__file__).read_text().splitlines()
    line = next(k for k, text in enumerate(lines) if text.endswith("# has no lowering"))
    assert left.where is not None
    assert left.where.endswith(f"test_explain.py:{line + 1}")
    assert left.reason


def test_backward_ops_have_the_forward_line(report: CompileReport) -> None:
    assert any("triangular" in op.op for op in report.graphs[1].left)
    for op in report.graphs[1].left:
        assert op.where is not None
        assert "test_explain.py" in op.where


def test_parts_have_a_strategy_and_a_compile_time(report: CompileReport) -> None:
    first, second = report.graphs[0].parts
    assert first.ops == {"aten.mul.Tensor": 2, "aten.add.Tensor": 1}
    assert first.strategy != ""
    assert first.seconds > 0
    assert first.mflop == pytest.approx(3 * 9e-6)
    assert second.megabytes >= 2 * 9 * 4e-6
    assert report.graphs[0].ops_compiled == 6


def test_the_text_has_all_of_the_report(report: CompileReport) -> None:
    text = str(report)
    for word in (
        "2 graphs",
        "forward",
        "backward",
        "cholesky",
        "test_explain.py",
        "tiled",
        " s",
        "MFLOP",
    ):
        assert word in text


def test_a_second_compile_hits_the_cache(report: CompileReport) -> None:
    before = turbine.counters()
    again = turbine.explain(mixed, torch.eye(3, requires_grad=True))
    after = turbine.counters()
    assert all(part.cached for graph in again.graphs for part in graph.parts)
    assert "(cached)" in str(again)
    assert after["cache_hits"] - before["cache_hits"] == sum(len(g.parts) for g in again.graphs)
    assert after["graphs"] - before["graphs"] == 2
    assert after["ops_compiled"] - before["ops_compiled"] == again.ops_compiled
    assert after["ops_in_pytorch"] - before["ops_in_pytorch"] == len(again.left)


def test_graph_breaks_are_reported() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    report = turbine.explain(broken, torch.ones(3))
    assert len(report.graphs) == 2
    assert sum(report.breaks.values()) == 1


def test_explain_unwraps_compiled_models() -> None:
    model = torch.nn.Linear(3, 3).eval()
    report = turbine.explain(torch.compile(model, backend="turbine"), torch.ones(2, 3))
    assert report.left == ()


def test_ops_added_by_autograd_have_the_line_of_a_neighbour() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    known = graph.call_function(torch.ops.aten.relu.default, (x,))
    known.meta["stack_trace"] = f'  File "{__file__}", line 7, in forward\n    x.relu()\n'
    added = graph.call_function(torch.ops.aten.add.Tensor, (x, known))
    assert (place_of(added) or "").endswith("test_explain.py:7")
    assert place_of(fx.Graph().placeholder("alone")) is None


def test_dump_writes_every_stage_of_every_part(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dump": tmp_path}
    torch.compile(lambda x: x.sin() * x + 1, backend="turbine", options=options)(torch.ones(3))
    written = sorted(path.name.partition("_")[2] for path in tmp_path.iterdir())
    assert written == ["part_1_captured.py", "part_2_lowered.mlir"]
    [lowered] = tmp_path.glob("*lowered.mlir")
    assert "torch.aten.mul.Tensor" in lowered.read_text()
