"""Ctrl-C, SIGTERM, fork and spawn at any time leave no worker, and later compiles work."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import pytest

from tests.forked import in_child
from tests.reliability import processes
from turbine.compiler import pool

Amount = Callable[[int, int], int]

# Compiles without end, in several threads, and forks and spawns children that compile too.
BUSY = """
import multiprocessing, os, sys, threading
from turbine import target
from turbine.compiler import pipeline

def compile_one(number):
    source = f"func.func @f() -> i32 {{ %0 = arith.constant {number} : i32 return %0 : i32 }}"
    cpu = target.parse("cpu:generic")
    return pipeline.compile_ir(source.encode(), cpu, strategy="plain-O0", use_cache=False).data

def compile_on(first):
    for number in range(first, first + 10_000):
        compile_one(number)

if __name__ == "__main__":
    print("ready", flush=True)
    threading.Thread(target=compile_on, args=(10_000,), daemon=True).start()
    if sys.argv[1] == "fork":
        child = os.fork()
        if child == 0:
            compile_on(20_000)
    if sys.argv[1] == "spawn":
        multiprocessing.get_context("spawn").Process(target=compile_on, args=(3,)).start()
    compile_on(0)
"""


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", ["plain", "fork", "spawn"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signals_leave_no_child_process(
    kind: str, sent: signal.Signals, tmp_path: Path, amount: Amount
) -> None:
    program = tmp_path / "busy.py"
    program.write_text(BUSY)
    chance = random.Random(f"{kind}{sent}")
    for number in range(amount(1, 20)):
        mark = f"{os.getpid()}-{kind}-{sent}-{number}"
        run = f"import runpy, sys; sys.argv[:1] = [{str(program)!r}]\n"
        run += "runpy.run_path(sys.argv[0], run_name='__main__')"
        where = {"TMPDIR": str(tmp_path), "PYTHONPATH": f"{_ROOT}{os.pathsep}{tmp_path}"}
        with _in_group(run, kind, mark=mark, **where) as busy:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 2))
            os.killpg(busy.pid, sent)
            busy.communicate(timeout=processes.PATIENCE)
        assert processes.ends(mark)
        assert list(tmp_path.glob("turbine-compiler-*")) == []


_ROOT = Path(__file__).resolve().parents[2]


def _in_group(program: str, *words: str, mark: str, **env: str) -> subprocess.Popen[str]:
    """As from a terminal, where Ctrl-C reaches the children too; workers are not in the group."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env, processes.MARK: mark},
        process_group=0,
    )


def test_fork_waits_for_starting_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    # The child would hold the worker's end of the pipe, and its parent not see the worker die.
    begun, go_on = threading.Event(), threading.Event()
    pipes: list[int] = []

    def spawn(pipe: Connection, log: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
        pipes.append(_inode(pipe.fileno()))
        begun.set()
        go_on.wait(1)
        return subprocess.Popen(["sleep", "60"], start_new_session=True)

    monkeypatch.setattr(pool, "_spawn", spawn)
    workers: list[pool._Worker] = []
    thread = threading.Thread(target=lambda: workers.append(pool._start()))
    thread.start()
    assert begun.wait(processes.PATIENCE)
    found = in_child(lambda: f"{pipes[0] in [_inode(fd) for fd in _open_files()]}")
    go_on.set()
    thread.join()
    workers[0].bury()
    assert found == "False"


def _inode(fd: int) -> int:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]
