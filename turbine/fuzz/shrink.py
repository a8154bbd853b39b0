"""Shrink a failing case to the smallest that still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from turbine.child_processes import Crash, run_jobs
from turbine.fuzz.case import Case

# A candidate that hangs is as good a finding as a crash, but the original may be slow.
_LIMIT = 120.0
_CASES_PER_PROCESS = 100


def shrink(
    case: Case, problem: str, start: Callable[[], Callable[[Any], Any]], *, seconds: float
) -> tuple[Case, str]:
    """The smallest failing case found in this time, and how it fails.

    Args:
        start: makes the function that checks a case, in a child process.
    """
    search = _Search(case, problem, time.monotonic() + seconds)
    jobs = search.candidates()
    for candidate, answer in run_jobs(start, jobs, limit=_LIMIT, lifetime=_CASES_PER_PROCESS):
        failure = answer.reason if isinstance(answer, Crash) else answer[1].problem
        if failure is not None:
            search.accept(candidate, failure)
    return search.best, search.problem


class _Search:
    """The best case so far; candidates are derived from it."""

    def __init__(self, case: Case, problem: str, end: float) -> None:
        self.best = case
        self.problem = problem
        self.end = end

    def accept(self, case: Case, problem: str) -> None:
        """Continue from a smaller case that fails."""
        self.best, self.problem = case, problem

    def candidates(self) -> Iterator[Case]:
        """Each case one step simpler than the best, until none of them fails."""
        tried: set[Case] = set()
        found = True
        while found:
            found = False
            start = self.best
            for candidate in _simpler(start):
                if time.monotonic() > self.end:
                    return
                if candidate in tried:
                    continue
                tried.add(candidate)
                yield candidate
                if self.best is not start:
                    found = True
                    break


def _simpler(case: Case) -> Iterator[Case]:
    for program in case.program.simpler():
        yield replace(case, program=program)
    if case.other_size is not None:
        yield replace(case, other_size=None)
