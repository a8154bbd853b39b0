"""Keep compiler processes alive between compiles, and end them when they hang or crash."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from turbine import config, errors
from turbine.compiler import scratch
from turbine.compiler.session import Outcome, Request

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_LOG_LIMIT = 2000


@dataclass(eq=False)
class Job:
    """A compile under way in a worker process; leaving its `with` block early ends the process.

    Note [One thread per job]: the work is done on a thread of the job's own, and the caller only
    waits. So a worker that reads nothing cannot block the caller, and Ctrl-C, which Python raises
    in the main thread between any two steps, cannot leave the pool half changed. What the caller
    does touch (`_thread`, SimpleQueue, Lock) is written in C, where no such step is.
    """

    request: Request
    workers: int  # how many may be busy at once, this one included
    memory_mb: int
    worker: _Worker | None = None  # while it works for this job
    closed: bool = False
    # First the time at which a worker was found, then the answer; or only an error.
    news: SimpleQueue[float | Outcome | BaseException] = field(default_factory=SimpleQueue)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        _pool.abandon(self)

    def result(self, timeout: float) -> Outcome:
        """Wait for the outcome; the time others take before a worker is free does not count."""
        timeout = min(timeout, threading.TIMEOUT_MAX)
        latest = self.news.get()
        if isinstance(latest, float):
            try:
                latest = self.news.get(timeout=max(latest + timeout - time.monotonic(), 0))
            except Empty:
                raise errors.CompileTimeout(
                    f"the compiler did not finish in {timeout:g} s",
                    hint="raise compile_timeout, or choose another strategy",
                ) from None
        if isinstance(latest, BaseException):
            raise latest
        assert isinstance(latest, Outcome)
        return latest


def begin(request: Request) -> Job:
    """Start compiling in a worker process; a crash is an error of the result, never our end."""
    settings = config.current()
    job = Job(request, settings.compile_workers, settings.compile_memory_mb)
    try:
        _thread.start_new_thread(_work, (job, _pool))
    except BaseException:
        _pool.abandon(job)
        raise
    return job


def _work(job: Job, pool: _Pool) -> None:
    """Run a job on its thread."""
    answer: Outcome | BaseException
    healthy = False
    try:
        worker = pool.acquire(job)
        if worker is None:
            return
        job.news.put(time.monotonic())
        answer = worker.ask(job.request, job.memory_mb)
        healthy = True
    except BaseException as error:
        answer = error
    # First the worker is free, then the caller hears: its next job finds this worker.
    pool.release(job, healthy=healthy)
    job.news.put(answer)


class _Pool:
    """Worker processes, idle and busy; jobs beyond their `workers` limit wait their turn."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.idle: list[_Worker] = []
        self.busy: set[Job] = set()

    def acquire(self, job: Job) -> _Worker | None:
        """A worker for this job, or None if the job was abandoned while it waited."""
        with self.changed:
            self.changed.wait_for(lambda: job.closed or len(self.busy) < job.workers)
            if job.closed:
                return None
            self.busy.add(job)
            job.worker = self._take_idle()
        started = None if job.worker is not None else _start()
        with self.lock:
            job.worker = job.worker or started
            if job.closed and job.worker is not None:
                job.worker.kill()
            return job.worker

    def release(self, job: Job, *, healthy: bool) -> None:
        """Return the job's worker to the pool, or end it; until then it counts as busy."""
        with self.lock:
            if healthy and not job.closed and job.worker is not None:
                self.idle.append(job.worker)
                job.worker = None
        if job.worker is not None:
            job.worker.bury()
        with self.changed:
            job.worker = None
            self.busy.discard(job)
            self.changed.notify_all()

    def abandon(self, job: Job) -> None:
        """Nobody waits for this job any more: a worker in the middle of it is of no more use."""
        with self.lock:
            job.closed = True
            if job.worker is not None:
                job.worker.kill()

    def close(self) -> None:
        """End every worker, as the program ends."""
        with self.lock:
            for worker in self.idle:
                worker.bury()
            self.idle.clear()
            for job in self.busy:
                if job.worker is not None:
                    job.worker.end()  # and no more: the job's thread may be using the pipe

    def all_workers(self) -> list[_Worker]:
        return [*self.idle, *(job.worker for job in self.busy if job.worker is not None)]

    def _take_idle(self) -> _Worker | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.is_waiting():
                return worker
            worker.bury()
        return None


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    log: IO[bytes]
    scratch: str  # the folder where the compiler keeps temporary files
    memory_mb: int = 0

    def ask(self, request: Request, memory_mb: int) -> Outcome:
        self._limit_memory(memory_mb)
        self.log.seek(0)  # for the worker too: it writes through the same open file
        self.log.truncate()
        try:
            self.pipe.send(request)
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self._crash() from error
        assert isinstance(answer, Outcome)
        return answer

    def is_waiting(self) -> bool:
        """Whether it lives: nothing is to be read from an idle worker but the end of its pipe."""
        return self.process.poll() is None and not self.pipe.poll()

    def kill(self) -> None:
        """End the process, and the linker it may have started."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End the process for good and remove what it left on disk.

        The folder goes first: if a signal ends us meanwhile, a worker that lives removes the rest,
        and one that is dead has left nothing.
        """
        scratch.remove(self.scratch)
        self.kill()
        self.process.wait()
        scratch.remove(self.scratch)

    def bury(self) -> None:
        """End the process and release its resources."""
        self.end()
        self.pipe.close()
        self.log.close()

    def disown(self) -> None:
        """Release what a fork copied; the process itself belongs to the parent."""
        self.pipe.close()
        self.log.close()
        self.process.returncode = 0  # or Popen complains that its child still runs

    def _limit_memory(self, megabytes: int) -> None:
        if megabytes == self.memory_mb:
            return
        self.memory_mb = megabytes
        limit = megabytes * 2**20 if megabytes else resource.RLIM_INFINITY
        try:
            _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_AS)
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard) if megabytes else hard
            resource.prlimit(self.process.pid, resource.RLIMIT_AS, (limit, hard))
        except ProcessLookupError:
            return  # sending it the request will tell how it died

    def _crash(self) -> errors.CompilerCrash:
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.log.seek(0)
        said = self.log.read(_LOG_LIMIT).decode(errors="replace").strip()
        hint = "this is a fault of the compiler on this program; your process is unharmed"
        if self.memory_mb:
            hint += f"; or compile_memory_mb={self.memory_mb} is too little"
        elif code == -signal.SIGKILL:
            hint += "; or memory ran out, then fewer compile_workers may help"
        return errors.CompilerCrash(
            f"the compiler process died ({how}){': ' + said if said else ''}", hint=hint
        )


def _start() -> _Worker:
    # A child forked meanwhile would keep the worker's end of the pipe open, and hide its death.
    with _starting:
        return _start_one()


def _start_one() -> _Worker:
    try:
        ours, theirs = Pipe()
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            fd = os.memfd_create("turbine-compiler")
            log = undo.enter_context(open(fd, "w+b", buffering=0))
            folder = scratch.choose()
            process = _spawn(theirs, log, folder)
            undo.pop_all()
    except OSError as error:
        raise errors.CompileError(
            f"the compiler process did not start: {error}",
            hint="config.set(in_process=True) compiles without one",
        ) from error
    return _Worker(process, ours, log, folder)


def _spawn(pipe: Connection, log: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
    search_path = os.pathsep.join(filter(None, [_PACKAGE_ROOT, os.environ.get("PYTHONPATH")]))
    # -P: modules in the user's working folder do not stand in for Python's own.
    command = [sys.executable, "-P", "-m", "turbine.compiler.worker"]
    arguments = [str(pipe.fileno()), str(os.getpid()), folder]
    return subprocess.Popen(
        [*command, *arguments],
        pass_fds=[pipe.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": search_path, "TMPDIR": folder},
        start_new_session=True,  # Ctrl-C is ours to handle
    )


_pool = _Pool()
_starting = threading.Lock()


def _start_over() -> None:
    """After a fork the workers belong to the parent."""
    global _pool, _starting
    _starting = threading.Lock()
    inherited, _pool = _pool, _Pool()
    for worker in inherited.all_workers():
        worker.disown()


def _close() -> None:
    _pool.close()


atexit.register(_close)
os.register_at_fork(
    before=lambda: _starting.acquire(),
    after_in_parent=lambda: _starting.release(),
    after_in_child=_start_over,
)
