"""A way to compile what is judged, for sweeps and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turbine.coverage.verdicts import Verdict

# An op or architecture, a seed and how many samples -> a verdict for each way of running it.
# Travels by pickle.
Judge = Callable[[Any, int, int], dict[str, Verdict]]

# Titles of the page's sections, in their order.
TITLES = COMPILE_BY_OP, EXPORT_BY_OP, EXPORT_BY_ARCHITECTURE = (
    "torch.compile, by op",
    "Export, by op",
    "Export, by architecture",
)


@dataclass(frozen=True)
class FrontDoor:
    """What is judged and how, in which ways, with which statuses, and the words of its section."""

    items: Callable[[], Mapping[str, Any]]  # by name, found in the child process
    judge: Judge
    groups: tuple[str, ...]  # headings, in their order
    group: Callable[[str], str]  # the heading that an item is listed under
    ways: tuple[str, ...]
    statuses: tuple[str, ...]  # in the order of the table
    title: str  # one of TITLES
    noun: str
    introduction: str  # with {count} and {version}, those of the items and of what they are from
    version: Callable[[], str]
    legend: tuple[str, ...]
    explained: Mapping[str, tuple[str, ...]]  # heading -> statuses whose reasons are listed there
