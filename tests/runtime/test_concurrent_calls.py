"""Calls from many threads: results, errors, threads and cores of programs, and exits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from tests.threads import TIMEOUT, run_threads
from turbine import errors
from turbine.runtime import device as devices
from turbine.runtime.shared_lock import SharedLock

WIDTH = 64


class Lookup(nn.Module):
    """Rows of a table, multiplied; a wrong index fails in the compiled program."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(256, WIDTH))

    def forward(self, index: Tensor) -> Tensor:
        found: Tensor = self.layers(self.table(index))
        return found


@pytest.fixture(scope="module")
def lookup_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("concurrent") / "lookup.turbine"
    rows = Dim("rows", min=1, max=4096)
    index = torch.arange(5)
    turbine.aot.export(Lookup().eval(), args=(index,), dynamic_shapes=({0: rows},)).compile(path)
    return path


@pytest.mark.parametrize("driver", [devices.SYNC, devices.TASK])
def test_each_thread_gets_the_results_of_its_own_arguments(driver: str, lookup_file: Path) -> None:
    with turbine.config.override(sync_limit_mflop=1e9 if driver == devices.SYNC else 0.0):
        artifact = turbine.load(lookup_file)
    assert artifact.driver == driver
    calls = [torch.randint(50, (1 + 7 * n % 40,)) for n in range(24)]
    expected = [artifact(index) for index in calls]
    wrong = torch.tensor([3, 50])

    def call(first: int) -> None:
        for n in range(200):
            place = (first + n) % len(calls)
            found = artifact(calls[place])
            assert torch.equal(found, expected[place])

    def fail() -> None:
        for _ in range(50):
            with pytest.raises(errors.RunError):
                artifact(wrong)

    run_threads([*(partial(call, k) for k in range(8)), fail, fail])


def test_calls_of_one_artifact_run_at_the_same_time(lookup_file: Path) -> None:
    artifact = turbine.load(lookup_file, threads=1)
    lock: SharedLock = artifact._executable.own_values.calls
    index, most = torch.randint(50, (4096,)), 0

    def call() -> None:
        nonlocal most
        for _ in range(20):
            artifact(index)
            most = max(most, len(lock._inside))

    run_threads([call] * 4)
    assert most >= 2  # beside a thread that has just left


def test_a_reset_while_others_call_changes_no_result(lookup_file: Path) -> None:
    artifact = turbine.load(lookup_file)
    index = torch.arange(9)
    expected = artifact(index)

    def call() -> None:
        for _ in range(100):
            assert torch.equal(artifact(index), expected)

    def reset() -> None:
        for _ in range(20):
            artifact.reset()

    run_threads([call, call, reset])


def test_a_shared_lock_waits_for_those_inside_and_keeps_others_out() -> None:
    lock, order = SharedLock(), []
    inside = threading.Event()

    def stay() -> None:
        with lock, lock:
            inside.set()
            time.sleep(0.1)
            order.append("left")

    def come_late() -> None:
        with lock:
            order.append("never")

    threading.Thread(target=stay, daemon=True).start()
    assert inside.wait(TIMEOUT)
    assert lock.acquire(TIMEOUT)
    order.append("acquired")
    late = threading.Thread(target=come_late, daemon=True)
    late.start()
    late.join(0.1)
    with lock:
        order.append("owner")
    assert order == ["left", "acquired", "owner"]


# Threads and cores of a program.

WORKERS = """
import os, sys, time
import numpy
from turbine.runtime.artifact import load
def workers():
    found = []
    for task in os.listdir("/proc/self/task"):
        if open(f"/proc/self/task/{task}/comm").read().startswith("iree-worker"):
            lines = open(f"/proc/self/task/{task}/status").readlines()
            found += [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")]
    return sorted(found)
first, *rest = sorted(os.sched_getaffinity(0))
before = os.sched_getaffinity(0)
artifacts = [load(sys.argv[1], threads=1), load(sys.argv[1], cores=[first])]
artifacts += [load(sys.argv[1], cores=[first])]  # on the same threads
index = numpy.arange(5)
results = [artifact(index) for artifact in artifacts]
assert all((result == results[0]).all() for result in results)
assert os.sched_getaffinity(0) == before
print(*(artifact.driver for artifact in artifacts))
deadline = time.monotonic() + 10
while workers() != [str(first)] and time.monotonic() < deadline:
    time.sleep(0.02)
print(workers() == [str(first)])
"""


def test_programs_are_pinned_to_their_cores(lookup_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORKERS), str(lookup_file)],
        env={**os.environ, "TURBINE_SYNC_LIMIT_MFLOP": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["local-sync", "local-task", "local-task", "True"]


def test_impossible_threads_and_cores_are_errors(lookup_file: Path) -> None:
    with pytest.raises(errors.ConfigError, match="may not use core 4095"):
        turbine.load(lookup_file, cores=[4095])
    with pytest.raises(errors.ConfigError, match="threads=2 do not fit on cores="):
        turbine.load(lookup_file, threads=2, cores=[min(os.sched_getaffinity(0))])
    for wrong in ("0,x", "3-", [1, 1], [-1], 7):
        with pytest.raises(errors.ConfigError, match="option cores="):
            turbine.config.set(cores=wrong)


def test_cores_are_read_from_text() -> None:
    with turbine.config.override(cores="4,0-2"):
        assert turbine.config.current().cores == (4, 0, 1, 2)
