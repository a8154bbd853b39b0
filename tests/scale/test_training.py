"""Training on two machines loses a worker, or a machine, and goes on from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests import torchrun
from tests.reliability import processes

pytestmark = pytest.mark.scale

PROGRAM = torchrun.ROOT / "examples" / "scale" / "train.py"
STEPS, EVERY = 200, 10
TOLERANCE = 1e-5  # of losses, whose sums have another order in each setting

Losses = dict[int, float]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """The losses of one process in eager mode, which nothing interrupts."""
    folder = tmp_path_factory.mktemp("eager")
    with torchrun.agents(folder, PROGRAM, *_words(folder, "--backend", "eager"), count=1) as agent:
        torchrun.wait(folder, agent)
    return _losses(folder)


@pytest.mark.parametrize("form", [[], ["--sharded"]], ids=["DDP", "FSDP2"])
def test_a_killed_worker_is_started_again_with_the_same_losses(
    form: list[str], expected: Losses, tmp_path: Path
) -> None:
    words = _words(tmp_path, *form)
    with torchrun.agents(tmp_path, PROGRAM, *words, options=["--max-restarts=2"]) as agents:
        assert processes.soon(lambda: len(_lines(tmp_path)) > 2 * EVERY, torchrun.PATIENCE)
        victim = torchrun.worker(agents[1], PROGRAM)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        printed = torchrun.wait(tmp_path, agents)
    assert printed.count("2 processes go on from step-") == 1
    assert len(_lines(tmp_path)) >= STEPS  # some steps twice
    assert _losses(tmp_path) == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("form", [[], ["--sharded"]], ids=["DDP", "FSDP2"])
def test_one_machine_goes_on_where_two_stopped(
    form: list[str], expected: Losses, tmp_path: Path
) -> None:
    words = _words(tmp_path, *form)
    half = [*words, "--steps", str(STEPS // 2)]
    with torchrun.agents(tmp_path, PROGRAM, *half) as agents:
        torchrun.wait(tmp_path, agents)
    (tmp_path / "meeting").unlink()
    with torchrun.agents(tmp_path, PROGRAM, *words, count=1) as agents:
        printed = torchrun.wait(tmp_path, agents)
    assert f"1 processes go on from step-{STEPS // 2:08}" in printed
    assert len(_lines(tmp_path)) == STEPS
    assert _losses(tmp_path) == pytest.approx(expected, rel=TOLERANCE)


def _words(folder: Path, *more: str) -> list[str]:
    length = ["--steps", str(STEPS), "--every", str(EVERY), "--patience", "200"]
    return ["--folder", str(folder), *length, *more]


def _losses(folder: Path) -> Losses:
    """The loss of each step; steps that were repeated have to agree."""
    losses: Losses = {}
    for line in map(json.loads, _lines(folder)):
        assert losses.setdefault(line["step"], line["loss"]) == pytest.approx(line["loss"])
    assert sorted(losses) == list(range(STEPS))
    return losses


def _lines(folder: Path) -> list[str]:
    path = folder / "losses.jsonl"
    return path.read_text().splitlines() if path.exists() else []
