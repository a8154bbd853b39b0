"""A way to compile ops, for sweeps and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turbine.coverage.verdicts import Verdict

# An op, a seed and how many samples -> a verdict for each way of running it. Travels by pickle.
Judge = Callable[[Any, int, int], dict[str, Verdict]]


@dataclass(frozen=True)
class FrontDoor:
    """How ops are judged, in which ways, with which statuses, and the words of the page."""

    judge: Judge
    ways: tuple[str, ...]
    statuses: tuple[str, ...]  # in the order of the table
    title: str
    introduction: str  # with {ops} for what was judged
    legend: tuple[str, ...]
    explained: Mapping[str, tuple[str, ...]]  # heading -> statuses whose reasons are listed there
