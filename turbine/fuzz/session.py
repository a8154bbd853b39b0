"""Fuzz for some time, and yield shrunk failing cases."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from turbine import config
from turbine.child_processes import Crash, run_jobs
from turbine.fuzz.case import Case, Outcome
from turbine.fuzz.script import script
from turbine.fuzz.shrink import shrink

MODELS, KERNELS = "models", "kernels"
KINDS = (MODELS, KERNELS)
# Seconds one case may take; it counts as a finding then.
_LIMIT = 300.0
_CASES_PER_PROCESS = 50
_SHARE_OF_KERNELS = 0.3
_SHARE_OF_GUARDED = 0.4
_SHARE_WITH_LIBRARY = 0.2
_CASES_PER_SEED = 1_000_000


@dataclass(frozen=True)
class Finding:
    """A case that fails, and how."""

    number: int
    case: Case
    problem: str

    def script(self) -> str:
        """A script that raises; it pastes into an issue."""
        return script(self.case, self.problem)


@dataclass
class Tally:
    """How many cases agreed, were refused or failed, in each mode."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, mode: str, outcome: Outcome) -> None:
        """Count one case."""
        verdict = "agreed"
        if outcome.problem is not None:
            verdict = "failed"
        elif outcome.refused is not None:
            verdict = "refused"
            self.refusals[outcome.refused] += 1
        self.counts[mode, verdict] += 1

    @property
    def total(self) -> int:
        """How many programs ran."""
        return self.counts.total()


def fuzz(
    *,
    seed: int = 0,
    seconds: float = 60.0,
    programs: int | None = None,
    jobs: int = 1,
    kinds: Sequence[str] = KINDS,
    shrink_seconds: float = 60.0,
    tally: Tally | None = None,
) -> Iterator[Finding]:
    """Run random programs in child processes and yield the failing ones, shrunk.

    Args:
        seed: of the sequence of programs; the same seed gives the same programs.
        seconds: how long to go on.
        programs: stop after so many, if the time is not over before.
        jobs: how many processes run at once.
        kinds: "models", "kernels" or both.
        shrink_seconds: how long each failing program is made smaller; 0 leaves it as it is.
        tally: counts the programs that ran.
    """
    numbers = islice(_numbers(seed, seconds), programs)
    yield from _run(numbers, jobs, kinds, shrink_seconds, Tally() if tally is None else tally)


def run_case(
    number: int, *, kinds: Sequence[str] = KINDS, shrink_seconds: float = 60.0, tally: Tally
) -> Iterator[Finding]:
    """Run the one program of a number, as `fuzz` does."""
    yield from _run(iter([number]), 1, kinds, shrink_seconds, tally)


def _run(
    numbers: Iterator[int], jobs: int, kinds: Sequence[str], shrink_seconds: float, tally: Tally
) -> Iterator[Finding]:
    start = _Start(tuple(kinds))
    answers = run_jobs(start, numbers, count=jobs, limit=_LIMIT, lifetime=_CASES_PER_PROCESS)
    for number, answer in answers:
        if isinstance(answer, Crash):
            case, outcome = _draw(number, kinds), Outcome(answer.reason)
        else:
            case, outcome = answer
        if case is None:
            tally.add("drawing", Outcome(refused=f"eager PyTorch: {outcome.problem}"))
            continue
        tally.add(case.mode, outcome)
        if outcome.problem is not None:
            small, problem = case, outcome.problem
            if shrink_seconds:
                small, problem = shrink(case, problem, start, seconds=shrink_seconds)
            yield Finding(number, small, problem)


def _draw(number: int, kinds: Sequence[str]) -> Case | None:
    """The case of a number, None where eager PyTorch ends the process that draws it."""
    start = _Start(tuple(kinds), is_checked=False)
    for _, answer in run_jobs(start, [number], limit=_LIMIT, lifetime=1):
        if not isinstance(answer, Crash):
            case: Case = answer[0]
            return case
    return None


def random_case(number: int, kinds: Sequence[str] = KINDS) -> Case:
    """The case of a number: the same each time."""
    from turbine.fuzz.kernels import random_kernel
    from turbine.fuzz.models import random_model

    # A stream of its own: a program is drawn from the number itself.
    draw = random.Random(f"kind of {number}")
    kind = KERNELS if draw.random() < _SHARE_OF_KERNELS else MODELS
    # Results between guard pages are compiled in another way than those that IREE allocates.
    is_guarded = draw.random() < _SHARE_OF_GUARDED
    if kind not in kinds:
        (kind,) = kinds
    case = random_kernel(number) if kind == KERNELS else random_model(number)
    choice = "always" if draw.random() < _SHARE_WITH_LIBRARY else "never"
    return replace(case, guard=is_guarded, library_calls=choice)


def _numbers(seed: int, seconds: float) -> Iterator[int]:
    end = time.monotonic() + seconds
    number = seed * _CASES_PER_SEED
    while time.monotonic() < end:
        yield number
        number += 1


@dataclass(frozen=True)
class _Start:
    """Prepares a child process; called there."""

    kinds: tuple[str, ...]
    is_checked: bool = True

    def __call__(self) -> Callable[[Any], tuple[Case, Outcome]]:
        from turbine.fuzz.check import check

        config.set(compile_workers=1, raise_faults=True)

        def answer(job: int | Case) -> tuple[Case, Outcome]:
            case = job if isinstance(job, Case) else random_case(job, self.kinds)
            return case, check(case) if self.is_checked else Outcome()

        return answer
