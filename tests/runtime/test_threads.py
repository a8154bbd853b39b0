"""The number of threads of a compiled program, and idle threads of PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from turbine.runtime import device

processes = pytest.mark.sweep(1, "processes")

# Threads get their names, and end, a little after the call that starts or ends them.
WAIT = """
import os, time, torch
def wait(count, is_reached):
    deadline = time.monotonic() + 10
    while not is_reached(count()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return count()
def threads():
    return len(os.listdir("/proc/self/task"))
"""
WORKERS = """
torch.set_num_threads({count})
from turbine.runtime import device
print(device.driver_for(device.target.parse("cpu"), 1e6))
device.device("local-task")
def workers():
    tasks = os.listdir("/proc/self/task")
    names = [open(f"/proc/self/task/{{task}}/comm").read() for task in tasks]
    return sum(name.startswith("iree-worker") for name in names)
print(wait(workers, lambda found: found == {count}))
"""
RELEASE = """
from turbine.runtime import openmp
torch.set_num_threads(2)
openmp.release_threads()
x = torch.randn(1 << 20)
expected = x.exp()
before = threads()
openmp.release_threads()
after = wait(threads, lambda found: found < before)
assert torch.equal(x.exp(), expected)
print(before - after, threads() - after)
"""


FORK = """
from turbine.runtime import openmp
from tests.forked import in_child
torch.set_num_threads(2)
torch.randn(1 << 20).exp()
print(in_child(lambda: str(openmp.release_threads())))
"""


def run(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WAIT + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@processes
@pytest.mark.parametrize("count", sorted({1, len(os.sched_getaffinity(0))}))
def test_programs_use_the_thread_count_of_pytorch(count: int) -> None:
    driver, workers = run(WORKERS.format(count=count))
    assert count > 1 or driver == "local-sync"
    assert workers == str(count)


@processes
def test_idle_openmp_threads_are_stopped_and_restarted() -> None:
    assert run(RELEASE) == ["1", "1"]


@processes
def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent() -> None:
    assert run(FORK) == ["None"]


@pytest.mark.parametrize(("mflop", "expected"), [(1e6, True), (1, False)])
def test_only_long_calls_use_all_cores(mflop: float, expected: bool) -> None:
    assert device.is_long(device.TASK, mflop) is expected
    assert not device.is_long(device.SYNC, mflop)
