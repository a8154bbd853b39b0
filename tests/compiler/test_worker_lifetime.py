"""Compiler processes exit with the program that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.compiler.worker_requests import FLAGS, MATMUL, SMALL, exists, soon

# Programs that hold workers of their own; {} are their last lines.
PROGRAM = f"""
import os, signal, sys, threading, time
from turbine import target
from turbine.compiler import invoke, pipeline, pool, session
FLAGS = {FLAGS!r}
SMALL = session.Request({SMALL.source!r}, FLAGS)
SLOW = "".join({MATMUL!r}.format(n=n) for n in range(11, 611)).encode()

def print_busy(count, busy):
    while len(found := [w for w in pool._pool.all_workers() if cpu(w) >= busy]) < count:
        time.sleep(0.05)
    for worker in found:
        print(worker.process.pid, worker.scratch, flush=True)

def cpu(worker):
    with open(f"/proc/{{worker.process.pid}}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

def slow(strategy):
    cpu = target.parse("cpu:generic")
    pipeline.compile_ir(SLOW, cpu, strategy=strategy, measure=lambda compiled: 0.0)
"""


AUTO = """
threading.Thread(target=print_busy, args=(1, 0.5), daemon=True).start()
slow("auto")
"""


TUNE = """
threading.Thread(target=print_busy, args=(2, 0.5), daemon=True).start()
slow("tune")
"""


IDLE = """
invoke.run(SMALL)
print_busy(1, 0)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("lines", "count"), [(AUTO, 1), (TUNE, 2), (IDLE, 1)], ids=["auto", "tune", "idle"]
)
def test_ctrl_c_stops_at_once_and_leaves_no_process(lines: str, count: int) -> None:
    with _program(lines) as program:
        held = _read_workers(program, count)
        program.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, said = program.communicate(timeout=60)
    assert time.monotonic() - started < 5
    assert program.returncode == -signal.SIGINT
    assert said.strip().endswith("KeyboardInterrupt")
    _assert_gone(held)


@pytest.mark.parametrize(("lines", "count"), [(TUNE, 2), (IDLE, 1)], ids=["tune", "idle"])
def test_workers_do_not_outlive_a_killed_parent(lines: str, count: int) -> None:
    with _program(lines) as program:
        held = _read_workers(program, count)
        program.kill()
    _assert_gone(held)


def test_workers_exit_with_the_program() -> None:
    with _program("invoke.run(SMALL)\nprint_busy(1, 0)") as program:
        held = _read_workers(program, 1)
        assert program.communicate(timeout=60) == ("", "")
    assert program.returncode == 0
    _assert_gone(held)


FORK = """
def compile_and_tell(who):
    assert invoke.run(SMALL).data is not None
    print(who, pool._pool.idle[0].process.pid, flush=True)

compile_and_tell("parent")
child = os.fork()
if child == 0:
    compile_and_tell("child")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert os.path.isdir(pool._pool.idle[0].scratch)
compile_and_tell("parent")
"""


def test_a_forked_child_starts_its_own_workers() -> None:
    with _program(FORK) as program:
        out, said = program.communicate(timeout=60)
    assert said == ""
    names, pids = zip(*(line.split() for line in out.splitlines()), strict=True)
    assert names == ("parent", "child", "parent")
    assert pids[0] == pids[2] != pids[1]
    assert soon(lambda: not any(exists(int(pid)) for pid in pids))


def _program(lines: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM + lines],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TURBINE_COMPILE_WORKERS": "2"},
    )


def _read_workers(program: subprocess.Popen[str], count: int) -> list[list[str]]:
    """The process and the temporary folder of each busy worker."""
    assert program.stdout is not None
    return [program.stdout.readline().split() for _ in range(count)]


def _assert_gone(held: list[list[str]]) -> None:
    assert soon(lambda: not any(exists(int(pid)) for pid, _ in held))
    assert soon(lambda: not any(Path(scratch).exists() for _, scratch in held))
