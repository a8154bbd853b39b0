"""Training on two machines loses a worker, or a machine, and goes on from its checkpoint."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
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
    assert re.search(r"^[1-9]\d* ops were compiled$", printed, re.MULTILINE)
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


# Machine 1 cuts its cable when there are two checkpoints. torchrun tells by names who hosts the
# meeting point, and both machines have the same name: is_host says it.
MACHINE = """
conf=is_host=$((1 - MACHINE)),last_call_timeout=5,read_timeout=10,keep_alive_interval=2
set -- "$PYTHON" -m torch.distributed.run --nnodes 1:2 --max-restarts 3 --rdzv-backend c10d \\
    --rdzv-endpoint 10.77.0.1:29500 --rdzv-id test --rdzv-conf "$conf" \\
    --local-addr 10.77.0.$((MACHINE + 1)) "$@"
if [ $MACHINE = 0 ]; then exec "$@"; fi
"$@" &
while [ ! -d step-00000020 ] && kill -0 $!; do sleep 0.05; done
ip link set cable down
sleep 5
kill -9 $!
"""
TWO_MACHINES = ["sh", str(Path(__file__).with_name("two_machines.sh"))]


def test_one_machine_goes_on_when_the_cable_to_the_other_is_cut(
    expected: Losses, tmp_path: Path
) -> None:
    if subprocess.run([*TWO_MACHINES, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here: they need iproute2 and user namespaces")
    words = [str(PROGRAM), *_words(tmp_path), "--patience", "20"]
    done = subprocess.run(
        [*TWO_MACHINES, "sh", "-c", MACHINE, "machine", *words],
        cwd=tmp_path,
        env=torchrun.environment() | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=torchrun.PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "1 processes go on from step-" in done.stdout
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
