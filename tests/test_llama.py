"""The Llama example writes what PyTorch does, and its benchmark prints what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import turbine
from examples.llama import generate
from examples.llama.decoder import TINY, decoder
from examples.llama.programs import compile_to, export, save_weights
from turbine import errors

pytestmark = pytest.mark.run

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _same_turbine_in_subprocesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_llama_writes_what_pytorch_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--tiny", "--tokens", "64"]) == 0
    assert "64 of 64 tokens are the same" in capsys.readouterr().out


def test_a_quantized_llama_scores_much_as_the_whole_one(tmp_path: Path) -> None:
    model = decoder(TINY)
    artifact = turbine.load(compile_to(tmp_path, model, TINY, bits=8))
    prompt = torch.arange(20)
    torch.testing.assert_close(artifact.prefill(prompt), model.prefill(prompt), rtol=0, atol=0.03)
    torch.testing.assert_close(
        artifact.decode(prompt[:1]), model.decode(prompt[:1]), rtol=0, atol=0.03
    )


def test_a_llama_whose_weights_file_lacks_some_is_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / "half.safetensors", decoder(TINY).blocks[0])
    with pytest.raises(errors.ParameterError, match=r"lacks .*blocks\.1\.attention\.key\.weight"):
        export(decoder(TINY), TINY).compile(
            tmp_path / "llama.turbine", archive=tmp_path / "half.safetensors"
        )
    assert not (tmp_path / "llama.turbine").exists()


def test_the_decode_benchmark_prints_a_row_for_a_kind_of_weights() -> None:
    script = str(ROOT / "benchmarks" / "llama_decode.py")
    small = ["--width", "64", "--layers", "1", "--seconds", "0.1", "--kinds", "int4"]
    done = subprocess.run(
        [sys.executable, script, *small], capture_output=True, text=True, check=True
    )
    rows = [line.split()[0] for line in done.stdout.splitlines()]
    assert rows == ["weights", "eager", "int4"]
