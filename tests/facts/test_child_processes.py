"""Jobs in child processes: each returns a result, even if its process crashes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from turbine.child_processes import Crash, run_jobs


def start() -> Callable[[str], str]:
    def answer(job: str) -> str:
        if job == "exit":
            os._exit(3)
        if job == "hang":
            time.sleep(600)
        if job == "raise":
            raise ValueError("no answer")
        return job.upper()

    return answer


def test_a_crash_fails_only_its_own_job() -> None:
    jobs = ["one", "exit", "two", "raise", "hang", "three"]
    answers = dict(run_jobs(start, jobs, count=2, limit=5.0, lifetime=2))
    assert answers == {
        "one": "ONE",
        "exit": Crash("the process ended with code 3"),
        "two": "TWO",
        "raise": Crash("ValueError: no answer"),
        "hang": Crash("took longer than 5 s"),
        "three": "THREE",
    }
