"""Batch inference and serving on Ray lose processes, and no rows or requests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.reliability import processes
from tests.torchrun import ROOT

pytestmark = pytest.mark.scale
pytest.importorskip("ray", reason="Ray is not installed: pip install 'turbine[ray]'")

Start = Callable[..., subprocess.Popen[str]]
PATIENCE = 500.0  # seconds


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is short, since Ray makes sockets in it."""
    path = Path(tempfile.mkdtemp(prefix="ray-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start a program whose processes all have a mark, and end with the test."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "100",  # a busy machine takes longer than 5
        processes.MARK: folder.name,
    }

    def run(name: str, *words: str) -> subprocess.Popen[str]:
        program = [sys.executable, str(ROOT / "tests" / "scale" / name), str(folder), *words]
        with (folder / "log").open("w") as log:
            return subprocess.Popen(program, stdout=log, stderr=log, text=True, env=environment)

    yield run
    end_all(folder)


def end_all(folder: Path) -> None:
    """Kill the program, the cluster and its workers."""
    while left := processes.marked(folder.name):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def succeed(program: subprocess.Popen[str], folder: Path) -> str:
    try:
        code = program.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        code = None
    printed = (folder / "log").read_text()
    assert code == 0, printed
    return printed


def sizes(folder: Path) -> list[int]:
    """The numbers of rows of the calls so far."""
    calls = folder / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [int(line.split()[1]) for line in lines]


def count_written(folder: Path) -> int:
    """The number of blocks that are written and noted as such."""
    noted = (folder / "written").glob("*.parquet")
    return sum(not path.name.endswith(".pending.parquet") for path in noted)


def test_an_actor_is_killed_in_a_batch_and_each_row_is_written_once(
    folder: Path, start: Start
) -> None:
    printed = succeed(start("batch_program.py", "dying"), folder)
    assert (folder / "killed").exists()
    assert "4000 rows, 0 missing, 0 twice\nscores are those of the rows" in printed
    assert sum(sizes(folder)) > 4000  # the rows of a block were computed twice
    assert min(sizes(folder)) < max(sizes(folder)) == 64  # the last batch is smaller


def test_a_cluster_is_killed_and_the_next_one_writes_the_other_rows(
    folder: Path, start: Start
) -> None:
    with start("batch_program.py", "slow"):
        assert processes.soon(lambda: sizes(folder) and count_written(folder), PATIENCE)
        end_all(folder)
    assert 0 < count_written(folder) < 4
    before = sum(sizes(folder))
    printed = succeed(start("batch_program.py", "recording"), folder)
    assert "4000 rows, 0 missing, 0 twice\nscores are those of the rows" in printed
    assert sum(sizes(folder)) - before < 4000


def test_a_replica_is_killed_and_every_request_gets_its_answer(folder: Path, start: Start) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    printed = succeed(start("serve_program.py", str(port)), folder)
    assert '400 "expected 32 numbers, got shape (3,)"' in printed
    assert "killed one of 2 replicas" in printed
    assert printed.count("400 answers, 0 wrong") == 2
    assert processes.ends(folder.name)  # nothing is left of the cluster
