"""Run jobs of `turbine coverage` and `turbine fuzz` in this process: children start slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from turbine import config
from turbine.coverage import sweep
from turbine.fuzz import session, shrink


def answer_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no child process until the test is over."""
    monkeypatch.setattr(config, "_settings", {})  # what a child sets ends with it
    monkeypatch.setattr(sweep, "run_jobs", _answers)
    monkeypatch.setattr(session, "run_jobs", _answers)
    monkeypatch.setattr(shrink, "run_jobs", _answers)


def _answers(
    start: Callable[[], Callable[[Any], Any]], jobs: Iterable[Any], **_: Any
) -> Iterator[tuple[Any, Any]]:
    answer = start()
    return ((job, answer(job)) for job in jobs)
