"""Compiler processes: reused, parallel, and isolated from the calling process."""

from __future__ import annotations

import gc
import math
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from timeit import repeat
from typing import IO, ClassVar

import pytest

from tests.compiler.worker_requests import FLAGS, SLOW, SMALL, exists, soon
from turbine import config, errors, target
from turbine.compiler import host, invoke, pipeline, pool
from turbine.compiler.diagnostics import Diagnostic
from turbine.compiler.session import Outcome, Request


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[pool._Pool]:
    with pytest.MonkeyPatch.context() as patch:
        shared = pool._Pool()
        patch.setattr(pool, "_pool", shared)
        yield shared
        _bury(shared, keep=0)


@pytest.fixture(autouse=True)
def workers(shared_pool: pool._Pool) -> Iterator[pool._Pool]:
    """A pool with at most one idle worker, which must be idle at the end of the test."""
    yield shared_pool
    assert soon(lambda: not shared_pool.busy)
    _bury(shared_pool, keep=1)


@pytest.fixture
def no_workers(workers: pool._Pool) -> Iterator[None]:
    """Every worker of the test is started by the test and ends with it."""
    _bury(workers, keep=0)
    yield
    assert soon(lambda: not workers.busy)
    _bury(workers, keep=0)


def _bury(workers: pool._Pool, *, keep: int) -> None:
    for worker in workers.idle[keep:]:
        worker.bury()
    del workers.idle[keep:]


def _at_work(job: pool.Job) -> pool._Worker:
    """The job's worker, once it has read the request and compiles."""
    assert soon(lambda: job.worker is not None)
    worker = job.worker
    assert worker is not None
    assert soon(lambda: _cpu_seconds(worker.process.pid) > 0.5)
    return worker


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _idle_pid(workers: pool._Pool) -> int:
    [worker] = workers.idle
    return worker.process.pid


def _is_ok(outcome: Outcome) -> bool:
    return outcome.data is not None


def test_a_worker_is_reused(workers: pool._Pool) -> None:
    assert _is_ok(invoke.run(SMALL))
    first = _idle_pid(workers)
    assert _is_ok(invoke.run(SMALL))
    assert _idle_pid(workers) == first


def test_a_failed_compile_keeps_the_worker(workers: pool._Pool) -> None:
    outcome = invoke.run(Request(b"not MLIR", FLAGS))
    assert outcome.data is None
    first = _idle_pid(workers)
    assert _is_ok(invoke.run(SMALL))
    assert _idle_pid(workers) == first


@pytest.mark.usefixtures("no_workers")
def test_in_process_compilation_matches_and_starts_no_worker(workers: pool._Pool) -> None:
    here = invoke.run(SMALL, in_process=True)
    assert workers.all_workers() == []
    assert here.data == invoke.run(SMALL, in_process=False).data


def test_a_crash_is_an_error_and_the_next_compile_works(workers: pool._Pool) -> None:
    with pool.begin(SLOW) as job:
        worker = _at_work(job)
        os.kill(worker.process.pid, signal.SIGSEGV)
        with pytest.raises(errors.CompilerCrash, match="SIGSEGV"):
            job.result(60)
    assert not exists(worker.process.pid)
    assert not Path(worker.scratch).exists()
    assert workers.all_workers() == []
    assert _is_ok(invoke.run(SMALL))


def test_a_compiler_crash_reports_its_last_output() -> None:
    # IREE 3.13 reads through a null pointer after it has said what is wrong.
    request = Request(SMALL.source, target.parse("cuda:bogus").flags)
    with pytest.raises(errors.CompilerCrash, match="Unknown CUDA target 'bogus'"):
        invoke.run(request)


def test_a_crash_does_not_report_output_of_earlier_compiles(workers: pool._Pool) -> None:
    invoke.run(Request(b"not MLIR", FLAGS))
    with pool.begin(SLOW) as job:
        os.kill(_at_work(job).process.pid, signal.SIGKILL)
        with pytest.raises(errors.CompilerCrash, match="SIGKILL") as caught:
            job.result(60)
    assert "custom op" not in caught.value.fact


def test_a_worker_that_died_while_idle_is_replaced(workers: pool._Pool) -> None:
    invoke.run(SMALL)
    first = _idle_pid(workers)
    os.kill(first, signal.SIGKILL)
    assert soon(lambda: not workers.idle[0].is_waiting())
    assert _is_ok(invoke.run(SMALL))
    assert _idle_pid(workers) != first
    assert not exists(first)


def test_a_timeout_ends_the_worker_and_the_next_compile_works(workers: pool._Pool) -> None:
    with pool.begin(SLOW) as job:
        worker = _at_work(job)
        with pytest.raises(errors.CompileTimeout, match=r"did not finish in 0\.1 s"):
            job.result(0.1)
    assert soon(lambda: not exists(worker.process.pid))
    assert soon(lambda: not Path(worker.scratch).exists())
    assert _is_ok(invoke.run(SMALL))


def test_the_timeout_comes_from_the_option(workers: pool._Pool) -> None:
    with config.override(compile_timeout=0.01), pytest.raises(errors.CompileTimeout):
        invoke.run(SLOW)


def test_a_timeout_may_be_infinite() -> None:
    assert _is_ok(invoke.run(SMALL, timeout=math.inf))


def test_a_worker_that_does_not_read_times_out(workers: pool._Pool) -> None:
    invoke.run(SMALL)
    pid = _idle_pid(workers)
    os.kill(pid, signal.SIGSTOP)
    large = Request(bytes(50_000_000), FLAGS)
    with pytest.raises(errors.CompileTimeout):
        invoke.run(large, timeout=0.5)
    assert soon(lambda: not exists(pid))


def test_a_worker_that_dies_during_a_request_is_a_crash(workers: pool._Pool) -> None:
    invoke.run(SMALL)
    pid = _idle_pid(workers)
    os.kill(pid, signal.SIGSTOP)
    with pool.begin(Request(bytes(50_000_000), FLAGS)) as job:
        assert soon(lambda: job.worker is not None)
        time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(errors.CompilerCrash, match="SIGKILL"):
            job.result(60)


HALF_AN_ANSWER = """
import os, sys
pipe = int(sys.argv[1])
os.read(pipe, 1 << 20)
os.write(pipe, b"\\0\\0\\x10\\0half of 4096 bytes")
sys.exit(3)
"""


@pytest.mark.usefixtures("no_workers")
def test_a_worker_that_dies_during_a_response_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(pipe: Connection, log: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", HALF_AN_ANSWER, str(pipe.fileno())]
        return subprocess.Popen(command, pass_fds=[pipe.fileno()], start_new_session=True)

    monkeypatch.setattr(pool, "_spawn", spawn)
    with pytest.raises(errors.CompilerCrash, match="exit code 3"):
        invoke.run(SMALL)


def test_python_exceptions_in_the_worker_are_outcomes(workers: pool._Pool) -> None:
    broken = Request(SMALL.source, (5,))  # type: ignore[arg-type]
    outcome = invoke.run(broken)
    assert outcome.data is None
    assert "the compiler raised AttributeError" in outcome.diagnostics[0].message
    assert len(workers.idle) == 1


NOISE = """
import sys, threading, time
def talk():
    while True:
        print("noise" * 100, flush=True)
        sys.stderr.write("more noise")
        time.sleep(0.001)
threading.Thread(target=talk, daemon=True).start()
"""


@pytest.mark.usefixtures("no_workers")
def test_output_of_the_worker_does_not_corrupt_responses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOISE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    expected = invoke.run(SMALL, in_process=True).data
    assert [invoke.run(SMALL).data for _ in range(3)] == [expected] * 3
    assert "noise" not in "".join(capfd.readouterr())


@pytest.mark.usefixtures("no_workers")
def test_modules_in_the_working_directory_do_not_shadow_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("struct", "logging", "turbine", "iree"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong file')")
    monkeypatch.chdir(tmp_path)
    assert _is_ok(invoke.run(SMALL))


@pytest.mark.usefixtures("no_workers")
def test_workers_inherit_no_file_descriptors(workers: pool._Pool, tmp_path: Path) -> None:
    with open(tmp_path / "mine", "w") as mine, socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(mine.fileno(), True)
        os.set_inheritable(server.fileno(), True)
        invoke.run(SMALL)
        folder = Path(f"/proc/{_idle_pid(workers)}/fd")
        targets = [os.readlink(link) for link in folder.iterdir()]
    assert str(tmp_path / "mine") not in targets
    assert sum("socket" in name for name in targets) == 1  # its own pipe


def test_children_of_workers_do_not_inherit_the_pipe(workers: pool._Pool) -> None:
    invoke.run(SMALL)
    process = Path(f"/proc/{_idle_pid(workers)}")
    [pipe] = [link for link in (process / "fd").iterdir() if "socket" in os.readlink(link)]
    flags = (process / "fdinfo" / pipe.name).read_text().partition("flags:")[2].split()[0]
    assert int(flags, 8) & os.O_CLOEXEC


WITH_A_LINKER = """
import os, subprocess, sys, time
linker = subprocess.Popen(["sleep", "60"])
os.rename(os.path.join(sys.argv[1], "none"), os.path.join(sys.argv[1], str(linker.pid)))
time.sleep(60)
"""


@pytest.mark.usefixtures("no_workers")
def test_the_linker_is_killed_with_its_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def spawn(pipe: Connection, log: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WITH_A_LINKER, str(tmp_path)]
        return subprocess.Popen(command, pass_fds=[pipe.fileno()], start_new_session=True)

    (tmp_path / "none").touch()
    monkeypatch.setattr(pool, "_spawn", spawn)
    with pool.begin(SMALL):
        assert soon(lambda: not (tmp_path / "none").exists())
    [linker] = tmp_path.iterdir()
    assert soon(lambda: not exists(int(linker.name)))


# From "Python does not start" to "the compiler does not load".
@pytest.mark.parametrize("megabytes", [10, 100, 300])
@pytest.mark.usefixtures("no_workers")
def test_too_low_a_memory_limit_is_an_error(megabytes: int) -> None:
    host.resolve.cache_clear()
    with (
        config.override(compile_memory_mb=megabytes, cache=False),
        pytest.raises(errors.CompileError),
    ):
        pipeline.compile_ir(SMALL.source, target.parse("cpu"))
    assert _is_ok(invoke.run(SMALL))


@pytest.mark.usefixtures("no_workers")
def test_a_crash_under_a_memory_limit_names_the_limit() -> None:
    with config.override(compile_memory_mb=10), pytest.raises(errors.CompilerCrash) as crash:
        invoke.run(SMALL)
    assert "compile_memory_mb=10 is too little" in str(crash.value.hint)


@pytest.mark.usefixtures("no_workers")
def test_changes_of_the_memory_limit_apply_to_running_workers(workers: pool._Pool) -> None:
    for megabytes in (0, 20_000, 10_000, 0):
        with config.override(compile_memory_mb=megabytes):
            assert _is_ok(invoke.run(SMALL))
        limits = Path(f"/proc/{_idle_pid(workers)}/limits").read_text()
        line = next(line for line in limits.splitlines() if "address space" in line)
        assert line.split()[3] == (str(megabytes * 2**20) if megabytes else "unlimited")


def test_two_jobs_run_in_parallel(workers: pool._Pool) -> None:
    with config.override(compile_workers=2), pool.begin(SLOW) as one, pool.begin(SLOW) as two:
        pids = {_at_work(one).process.pid, _at_work(two).process.pid}
    assert len(pids) == 2


def test_two_threads_compile_concurrently() -> None:
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(invoke.run(SMALL))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 4
    assert all(map(_is_ok, outcomes))


def test_waiting_for_a_worker_does_not_count_towards_the_timeout(workers: pool._Pool) -> None:
    with config.override(compile_workers=1), pool.begin(SLOW) as first:
        _at_work(first)
        with pool.begin(SMALL) as second:
            answers: list[Outcome] = []
            waiter = threading.Thread(target=lambda: answers.append(second.result(10)))
            waiter.start()
            time.sleep(0.2)
            assert second.worker is None
            workers.abandon(first)
            waiter.join(60)
    assert all(map(_is_ok, answers))
    assert len(answers) == 1


@pytest.mark.usefixtures("no_workers")
def test_a_cancelled_job_in_the_queue_takes_no_worker(workers: pool._Pool) -> None:
    with config.override(compile_workers=1), pool.begin(SLOW) as first:
        _at_work(first)
        with pool.begin(SMALL) as second:
            pass
    assert soon(lambda: not workers.busy)
    assert second.worker is None
    assert workers.all_workers() == []


@pytest.mark.usefixtures("no_workers")
def test_a_worker_that_cannot_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch, workers: pool._Pool, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        for _ in range(3):
            with pytest.raises(errors.CompileError, match=r"did not start.*/nowhere/python"):
                invoke.run(SMALL)
    assert not workers.busy
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []
    assert _is_ok(invoke.run(SMALL))


@pytest.mark.usefixtures("no_workers")
def test_a_temporary_folder_is_required(
    monkeypatch: pytest.MonkeyPatch, workers: pool._Pool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(errors.CompileError, match="did not start"):
        invoke.run(SMALL)
    assert not workers.busy


@pytest.mark.usefixtures("no_workers")
def test_an_interrupt_at_any_moment_keeps_the_pool_usable(
    monkeypatch: pytest.MonkeyPatch, workers: pool._Pool, amount: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr(pool, "_start", _StandIn)
    monkeypatch.setattr(_StandIn, "living", set())
    chance = random.Random(0)
    interrupted, calls = 0, amount(300, 2000)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.collect()
    gc.disable()  # Python drops an interrupt that falls in the clean-up of other tests' garbage
    try:
        with config.override(compile_workers=2):
            longest = max(1e-3, 4 * median(repeat(lambda: invoke.run(SMALL), repeat=20, number=1)))
            for _ in range(calls):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, longest))
                    invoke.run(SMALL)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert 0.05 < interrupted / calls < 0.95
    assert soon(lambda: not workers.busy)
    assert len(_StandIn.living) == len(workers.idle) <= 2
    assert _is_ok(invoke.run(SMALL))


class _StandIn:
    """A worker without a process, so that a test can have thousands."""

    living: ClassVar[set[_StandIn]] = set()

    def __init__(self) -> None:
        _StandIn.living.add(self)
        self.killed = False

    def is_waiting(self) -> bool:
        return True

    def ask(self, request: Request, memory_mb: int) -> Outcome:
        time.sleep(0.0003)
        if self.killed:
            raise errors.CompilerCrash("killed")
        return Outcome(b"code", ())

    def kill(self) -> None:
        self.killed = True

    def bury(self) -> None:
        _StandIn.living.discard(self)


ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TurbineError)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_pickle(kind: type[errors.TurbineError]) -> None:
    error = kind("fact", where="model.py:1", hint="hint")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.fact, again.where, again.hint) == ("fact", "model.py:1", "hint")
    assert str(again) == str(error)


def test_outcomes_pickle() -> None:
    outcome = Outcome(None, (Diagnostic(2, "message", ("a:1",)),), 0.5)
    assert pickle.loads(pickle.dumps(outcome)) == outcome
