"""Profiles: time, source lines and work of each dispatch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import errors
from turbine.cli.main import main
from turbine.runtime.artifact import Artifact
from turbine.runtime.profiler import Profile, profile


class Model(nn.Module):
    """A matmul of known size, and arguments of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(32))

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, half: Tensor) -> Tensor:
        scores = x @ y + self.bias
        return torch.where(mask, scores, 0).softmax(-1) + half.float()


ARGS = (
    torch.randn(16, 64),
    torch.randn(64, 32),
    torch.arange(32) % 2 == 0,
    torch.ones(32, dtype=torch.bfloat16),
)
CALLS = 3


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return turbine.aot.export(Model().eval(), args=ARGS).compile(describe=True)


@pytest.fixture(scope="module")
def report(artifact: Artifact) -> Profile:
    return profile(artifact, ARGS, calls=CALLS)


def test_dispatch_times_sum_to_at_most_the_call_time(report: Profile) -> None:
    inside = sum(row.milliseconds for row in report.rows)
    assert inside > 0
    assert sum(row.share for row in report.rows) == pytest.approx(1)
    assert [row.share for row in report.rows] == sorted(
        (r.share for r in report.rows), reverse=True
    )
    assert all(row.count >= 1 for row in report.rows)


def test_rows_name_source_lines(report: Profile) -> None:
    lines = {line for row in report.rows for line in row.lines}
    files = {line.rpartition(":")[0] for line in lines}
    assert files == {__file__}
    assert len(lines) == 2
    assert all(row.lines for row in report.rows)  # those of kernels too


def test_matmuls_have_throughput(report: Profile) -> None:
    (product,) = (row for row in report.rows if "mmt4d" in row.name or "matmul" in row.name)
    assert product.gflops == pytest.approx(2 * 16 * 64 * 32 / (1e6 * product.milliseconds))
    assert product.gflops is not None
    share = product.roofline(1e9 * product.gflops, 1e30)
    assert share == pytest.approx(1)


def test_a_trace_has_every_event(report: Profile, tmp_path: Path) -> None:
    report.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == len(report.events)
    assert all(event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0 for event in events)
    assert {row.name for row in report.rows} <= {event["name"] for event in events}


def test_artifacts_without_debug_info_have_times_only() -> None:
    bare = turbine.aot.export(Model().eval(), args=ARGS).compile()
    report = profile(bare, ARGS, calls=1)
    assert report.rows
    assert all(row.lines == () and row.gflops is None for row in report.rows)


def test_the_command_prints_a_table(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trace = tmp_path / "model.turbine", tmp_path / "trace.json"
    turbine.aot.export(Model().eval(), args=ARGS).compile(path, describe=True)
    assert main(["profile", str(path), "--calls", "2", "--rows", "1", "--trace", str(trace)]) == 0
    summary, head, first, more = capsys.readouterr().out.splitlines()
    assert summary.startswith("main: ")
    assert head.split()[:3] == ["dispatch", "runs", "ms"]
    assert "runtime/test_profiler.py:" in first
    assert more.startswith("and ")
    assert trace.exists()
    assert main(["profile", str(path), "--calls", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]


def test_invalid_usage_is_an_error(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(errors.ArgumentError, match="cannot profile 0 calls"):
        profile(artifact, ARGS, calls=0)
    assert main(["profile", str(tmp_path / "m.turbine"), "--trace", "t.txt"]) == 1
    assert "'.txt'; valid: .json" in capsys.readouterr().err
    assert main(["compile", "turbine.zoo:lenet", "-o", "m.vmfb", "--describe"]) == 1
    assert "--describe with .vmfb" in capsys.readouterr().err
