"""The Llama example matches PyTorch, and its benchmark prints its table."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import turbine
from examples.llama import generate, programs
from examples.llama.decoder import TINY, Decoder, Size, decoder
from examples.llama.programs import export, save_weights
from turbine import errors
from turbine.aot import ExportOutput

pytestmark = [pytest.mark.run, pytest.mark.sweep(1)]

ROOT = Path(__file__).resolve().parents[2]
# The one that the benchmark makes of a width of 64, so that its code is found in the cache.
SMALL = Size(width=64, hidden=176, layers=1, heads=1, key_heads=1)


@pytest.fixture(scope="module")
def small() -> Decoder:
    return decoder(SMALL)


@pytest.fixture(scope="module")
def exported(small: Decoder) -> ExportOutput:
    return export(small, SMALL)


def test_llama_generates_the_text_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "TINY", replace(TINY, layers=1))
    assert generate.main(["--tiny", "--tokens", "64"]) == 0
    assert "64 of 64 tokens are the same" in capsys.readouterr().out


def test_a_quantized_llama_scores_close_to_the_original(
    small: Decoder, exported: ExportOutput
) -> None:
    artifact = turbine.aot.quantize(exported, bits=8, group_size=32).compile()
    prompt = torch.arange(20)
    torch.testing.assert_close(artifact.prefill(prompt), small.prefill(prompt), rtol=0, atol=0.03)
    torch.testing.assert_close(
        artifact.decode(prompt[:1]), small.decode(prompt[:1]), rtol=0, atol=0.03
    )


def test_incomplete_llama_weights_are_rejected(
    tmp_path: Path, small: Decoder, exported: ExportOutput
) -> None:
    archive = tmp_path / "half.safetensors"
    save_weights(archive, nn.ModuleDict({"embed": small.embed}))
    with pytest.raises(errors.ParameterError, match=r"lacks .*blocks\.0\.attention\.key\.weight"):
        exported.compile(tmp_path / "llama.turbine", archive=archive)
    assert not (tmp_path / "llama.turbine").exists()


def test_the_decode_benchmark_prints_a_row_for_each_kind_of_weights(
    exported: ExportOutput, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {SMALL: exported}
    monkeypatch.setattr(programs, "export", lambda model, size: known[size])
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # it starts a process of its own
    options = ["--width", "64", "--layers", "1", "--seconds", "0.1", "--kinds", "int8"]
    assert importlib.import_module("llama_decode").main(options) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["weights", "eager", "int8"]
