"""The examples, the README's code and the benchmarks do what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import dynamic_batch, no_torch, quickstart

pytestmark = pytest.mark.run

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _same_turbine_in_subprocesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_quickstart_prints_a_row_per_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--tiny"])
    assert quickstart.main() == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["model", "resnet18", "gpt2"]


def test_quickstart_fails_when_a_result_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--tiny"])
    monkeypatch.setattr(quickstart, "run", lambda name, *_: quickstart.Row(name, 1e-3, 1, 1, 1))
    assert quickstart.main() == 1


def test_dynamic_batch_takes_every_size_in_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert dynamic_batch.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("same as PyTorch") == 3
    assert "=65 is out of range" in printed


def test_an_artifact_runs_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert no_torch.main() == 0
    assert "without torch" in capsys.readouterr().out


def test_the_readme_example_runs_as_written(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    printed = _python(tmp_path, "-c", "\n".join(blocks))
    assert printed == "(input: float32[8, 16]) -> float32[8, 4]\n"


def test_the_model_benchmark_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    script = str(ROOT / "benchmarks" / "models.py")
    options = ["--models", "mlp", "--tiny", "--seconds", "0", "--no-inductor"]
    printed = _python(tmp_path, script, *options, "--output", "figures.json")
    written = json.loads((tmp_path / "figures.json").read_text())
    assert [line.split()[0] for line in printed.splitlines()] == ["model", "mlp"]
    assert [row["model"] for row in written["rows"]] == ["mlp"]


def test_the_call_benchmark_compares_with_eager(tmp_path: Path) -> None:
    script = str(ROOT / "benchmarks" / "call_overhead.py")
    printed = _python(tmp_path, script, "--seconds", "0", "--no-inductor")
    assert "turbine, torch tensors" in printed
    assert "eager PyTorch" in printed


def _python(folder: Path, *arguments: str) -> str:
    """What a Python process prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
