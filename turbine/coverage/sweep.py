"""Judge many ops or architectures in child processes: names in, verdicts out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from turbine import config
from turbine.child_processes import Crash, run_jobs
from turbine.coverage.front_door import FrontDoor
from turbine.coverage.samples import SAMPLES
from turbine.coverage.verdicts import FAILS, Judged, Verdict

_JOBS_PER_PROCESS = 60
# Seconds one may take; it is killed then and counts as a failure.
LIMIT = 300.0


def shuffle(names: Sequence[str], seed: int) -> list[str]:
    """The order of a slice: another for each seed."""
    order = list(names)
    random.Random(seed).shuffle(order)
    return order


def sweep(
    names: Sequence[str],
    door: FrontDoor,
    *,
    seed: int = 0,
    samples: int = SAMPLES,
    jobs: int = 1,
    seconds: float | None = None,
    limit: float = LIMIT,
) -> Iterator[Judged]:
    """Judge in the order given until `seconds` are over; yields in the order they finish."""
    start = partial(_start, door, seed, samples)
    taken = _until(names, seconds)
    answers = run_jobs(
        start, taken, count=min(jobs, len(names)), limit=limit, lifetime=_JOBS_PER_PROCESS
    )
    for name, answer in answers:
        if isinstance(answer, Crash):
            failed = Verdict(FAILS, answer.reason)
            yield Judged(name, dict.fromkeys(door.ways, failed))
        else:
            yield Judged(name, answer)


def _until(names: Sequence[str], seconds: float | None) -> Iterator[str]:
    end = None if seconds is None else time.monotonic() + seconds
    for name in names:
        if end is not None and time.monotonic() >= end:
            return
        yield name


def _start(door: FrontDoor, seed: int, samples: int) -> Callable[[str], dict[str, Verdict]]:
    known = door.items()
    config.set(compile_workers=1, raise_faults=True, library_calls="never")
    return lambda name: door.judge(known[name], seed, samples)
