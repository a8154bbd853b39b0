"""Calls as named ranges of torch.profiler, and in the folder for traces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import aot, config
from turbine.cli.main import main
from turbine.dynamo import part_times
from turbine.runtime import ranges, run_trace
from turbine.runtime.artifact import Artifact

calls = pytest.mark.sweep(1, "calls")

X = torch.randn(4, 8)


def ranges_of(call: Callable[[], object]) -> Counter[str]:
    """The ranges of a call by name."""
    with part_times.quiet_kineto(), torch.profiler.profile() as seen:
        call()
    names = {event.key: event.count for event in seen.key_averages()}
    return Counter({name: n for name, n in names.items() if name.startswith("turbine::")})


def two_parts(x: Tensor) -> Tensor:
    root: Tensor = torch.linalg.cholesky((x @ x.T) * 2 + 9 * torch.eye(4) - 1)
    return root * 2 - x[:, :4] + 1


def compiled_function() -> Callable[[Tensor], Tensor]:
    torch.compiler.reset()
    return torch.compile(two_parts, backend="turbine", options={"library_calls": "never"})


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return aot.export(nn.Linear(8, 8), args=(X,), module_name="linear").compile()


@calls
def test_calls_of_an_artifact_are_ranges(artifact: Artifact) -> None:
    assert ranges_of(lambda: [artifact(X), artifact(X)]) == {"turbine::linear.main": 2}


@calls
def test_calls_of_compiled_parts_are_ranges() -> None:
    compiled = compiled_function()
    compiled(X)
    found = ranges_of(lambda: compiled(X))
    assert len(found) == 2
    assert all(name.startswith("turbine::part.") for name in found)


@calls
def test_a_call_that_fails_closes_its_range() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return x[index]

    picks = aot.export(Picks(), args=(X, torch.tensor([1])), module_name="picks").compile()

    def call() -> None:
        with pytest.raises(turbine.errors.RunError):
            picks(X, torch.tensor([9]))
        torch.ones(1)

    assert ranges_of(call) == {"turbine::picks.main": 1}


def test_without_a_profiler_no_range_is_made(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "open_range", None)
    artifact(X)
    assert not ranges.is_profiling()


def test_ranges_do_not_import_pytorch(artifact: Artifact, tmp_path: Path) -> None:
    artifact.save(tmp_path / "linear.turbine")
    program = (
        "import sys, numpy, turbine\n"
        f"turbine.load({str(tmp_path / 'linear.turbine')!r})(numpy.ones((4, 8), numpy.float32))\n"
        "print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("False\n", "")


# The folder for traces


def rows_in(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / run_trace.CALLS).read_text().splitlines()]


def test_calls_of_artifacts_are_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = aot.export(nn.Linear(8, 8), args=(X,), module_name="linear")
    with config.override(trace_dir=tmp_path):
        traced = out.compile()
    traced(X)
    traced(input=X)
    rows = rows_in(tmp_path)
    assert [row["kernel"] for row in rows] == ["linear", "linear"]
    assert all(row["args"] == ["float32[4, 8]"] for row in rows)
    assert (tmp_path / "linear.vmfb").exists()
    assert main(["trace", str(tmp_path)]) == 0
    assert "linear" in capsys.readouterr().out


def test_each_entry_point_is_traced_by_name(tmp_path: Path) -> None:
    class Counts(aot.CompiledModule):
        def up(self):  # type: ignore[no-untyped-def]
            return 1

        def down(self):  # type: ignore[no-untyped-def]
            return 2

    with config.override(trace_dir=tmp_path):
        traced = aot.export(Counts).compile()
    traced.up()
    traced.down()
    assert [row["kernel"] for row in rows_in(tmp_path)] == ["counts.up", "counts.down"]


def test_calls_of_compiled_parts_are_traced(tmp_path: Path) -> None:
    compiled = compiled_function()
    with config.override(trace_dir=tmp_path):
        compiled(X)
    compiled(X)
    names = [str(row["kernel"]) for row in rows_in(tmp_path)]
    assert len(names) == 4
    assert all((tmp_path / f"{name}.mlir").exists() for name in names)


def test_programs_loaded_without_the_option_are_not_traced(
    artifact: Artifact, tmp_path: Path
) -> None:
    with config.override(trace_dir=tmp_path):
        artifact(X)
    assert list(tmp_path.iterdir()) == []
