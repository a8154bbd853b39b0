"""Run jobs in child processes: jobs in, answers out, also if a job crashes or hangs."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

# Called once in a child: returns the function that answers each job. Both travel by pickle.
Start = Callable[[], Callable[[Any], Any]]

_GOODBYE = 10.0  # seconds an idle child has to end by itself


@dataclass(frozen=True)
class Crash:
    """The answer to a job that raised, ended its process or took too long."""

    reason: str


def run_jobs(
    start: Start, jobs: Iterable[Any], *, count: int = 1, limit: float, lifetime: int
) -> Iterator[tuple[Any, Any]]:
    """Yield (job, answer) as jobs finish; the next job is taken when a child is free.

    Args:
        start: called in each new child.
        jobs: may be a generator, asked only when a child is free.
        count: how many children run at once.
        limit: seconds one job may take before its process is killed.
        lifetime: jobs after which a child is replaced, since compiled programs stay loaded.
    """
    left = iter(jobs)
    children = [_Child(start, limit, lifetime) for _ in range(count)]
    try:
        for child in children:
            child.take(left)
        while busy := [child for child in children if child.is_busy]:
            _wait(busy, limit)
            for child in busy:
                answer = child.poll()
                if answer is not None:
                    yield answer
                    child.take(left)
    finally:
        for child in children:
            child.end()


class _Child:
    """A process that answers one job at a time, started anew after a crash."""

    def __init__(self, start: Start, limit: float, lifetime: int) -> None:
        self.start = start
        self.limit = limit
        self.lifetime = lifetime
        self.is_busy = False
        self.job: Any = None
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self.began = 0.0
        self.done = 0

    def take(self, left: Iterator[Any]) -> None:
        """Begin the next job, if there is one."""
        for job in left:
            self.job = job
            break
        else:
            return
        if self.process is None or self.done >= self.lifetime:
            self.end()
            self._begin()
        assert self.pipe is not None
        self.is_busy = True
        self.began = time.monotonic()
        self.pipe.send(self.job)

    def poll(self) -> tuple[Any, Any] | None:
        """The job and its answer, once there is one."""
        assert self.pipe is not None
        assert self.process is not None
        if self.pipe.poll():
            try:
                answer = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                return self._crash(f"the process ended with code {self.process.exitcode}")
            self.is_busy = False
            self.done += 1
            return self.job, answer
        if time.monotonic() - self.began > self.limit:
            return self._crash(f"took longer than {self.limit:.0f} s")
        return None

    def end(self) -> None:
        """Stop the process: an idle one ends by itself when its pipe is closed."""
        if self.process is None or self.pipe is None:
            return
        self.pipe.close()
        self.process.join(0.0 if self.is_busy else _GOODBYE)
        self.process.kill()
        self.process.join()
        self.process = None

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.start), daemon=False)
        self.process.start()
        theirs.close()
        self.done = 0

    def _crash(self, reason: str) -> tuple[Any, Crash]:
        self.end()
        self.is_busy = False
        return self.job, Crash(reason)


def _wait(busy: Sequence[_Child], limit: float) -> None:
    """Until a child answers or has to be killed."""
    soonest = min(child.began for child in busy) + limit - time.monotonic()
    wait([child.pipe for child in busy if child.pipe is not None], max(soonest, 0.0) + 0.1)


def _serve(pipe: Connection, start: Start) -> None:
    # PyTorch and IREE write to both streams; answers go through the pipe.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    warnings.simplefilter("ignore")
    answer = start()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            reply = answer(job)
        except Exception as error:
            reply = Crash(f"{type(error).__name__}: {error}")
        pipe.send(reply)
