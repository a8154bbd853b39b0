"""Judge many ops in child processes: names in, verdicts out, whatever an op does to its process."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from turbine import config
from turbine.dynamo import coverage
from turbine.dynamo.coverage import FAILS, Judged, Verdict

# Processes are ended after so many ops, since compiled programs stay loaded in them.
_OPS_PER_PROCESS = 60
# Seconds an op may take; it is ended then and counts as a failure.
LIMIT = 300.0
_GOODBYE = 10.0  # seconds


@dataclass(frozen=True)
class _Settings:
    """What a child process has to know."""

    seed: int
    samples: int
    knobs: dict[str, object]


def shuffled(names: Sequence[str], seed: int) -> list[str]:
    """The order of a slice: another for each seed."""
    order = list(names)
    random.Random(seed).shuffle(order)
    return order


def sweep(
    names: Sequence[str],
    *,
    seed: int = 0,
    samples: int = coverage.SAMPLES,
    jobs: int = 1,
    seconds: float | None = None,
    limit: float = LIMIT,
) -> Iterator[Judged]:
    """Judge ops in the order given until `seconds` are over; yields in the order they finish."""
    end = None if seconds is None else time.monotonic() + seconds
    left = list(reversed(names))
    settings = _Settings(seed, samples, {"compile_workers": 1})
    children = [_Child(settings) for _ in range(min(jobs, len(left)))]
    try:
        for child in children:
            child.give(left)
        while busy := [child for child in children if child.name is not None]:
            _wait(busy, limit)
            for child in busy:
                judged = child.answer(limit)
                if judged is not None:
                    yield judged
                    if end is None or time.monotonic() < end:
                        child.give(left)
    finally:
        for child in children:
            child.end()


class _Child:
    """A process that judges one op at a time, started anew when an op has ended it."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self.name: str | None = None  # the op it works on
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self.started = 0.0
        self.done = 0

    def give(self, left: list[str]) -> None:
        """Take the next name off the list and begin."""
        if not left:
            return
        if self.process is None or self.done >= _OPS_PER_PROCESS:
            self.end()
            self._begin()
        assert self.pipe is not None
        self.name = left.pop()
        self.started = time.monotonic()
        self.pipe.send(self.name)

    def answer(self, limit: float) -> Judged | None:
        """The verdict, if there is one: given, or followed from the end of the process."""
        assert self.name is not None
        assert self.pipe is not None
        assert self.process is not None
        if self.pipe.poll():
            try:
                judged: Judged = self.pipe.recv()
            except EOFError:
                self.process.join()
                return self._failure(f"the process ended with code {self.process.exitcode}")
            self.name = None
            self.done += 1
            return judged
        if time.monotonic() - self.started > limit:
            return self._failure(f"took longer than {limit:.0f} s")
        return None

    def end(self) -> None:
        """Stop the process: an idle one ends by itself when nobody asks it any more."""
        if self.process is None or self.pipe is None:
            return
        self.pipe.close()
        self.process.join(0.0 if self.name is not None else _GOODBYE)
        self.process.kill()
        self.process.join()
        self.process = None

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.settings), daemon=False)
        self.process.start()
        theirs.close()
        self.done = 0

    def _failure(self, reason: str) -> Judged:
        assert self.name is not None
        failed = Verdict(FAILS, reason)
        judged = Judged(self.name, failed, failed)
        self.end()
        self.name = None
        return judged


def _wait(busy: Sequence[_Child], limit: float) -> None:
    """Until a child says something or has to be ended."""
    soonest = min(child.started for child in busy) + limit - time.monotonic()
    wait([child.pipe for child in busy if child.pipe is not None], max(soonest, 0.0) + 0.1)


def _work(pipe: Connection, settings: _Settings) -> None:
    # PyTorch and IREE talk about each op; what counts goes through the pipe.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    warnings.simplefilter("ignore")
    known = coverage.ops()
    config.set(**settings.knobs)
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        pipe.send(coverage.judge(name, known[name], seed=settings.seed, samples=settings.samples))
