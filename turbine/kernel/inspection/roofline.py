"""Compare the work of a call with the time this machine needs for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from turbine.kernel.inspection.peaks import Peaks
from turbine.kernel.program.work import Work


def least_seconds(work: Work, peaks: Peaks) -> float:
    """The roofline time: for operations or for memory, whichever is longer."""
    return max(work.operations / peaks.operations, work.bytes / peaks.bandwidth)


def limit(work: Work, peaks: Peaks) -> str:
    """Whether the roofline is arithmetic or memory."""
    computing = work.operations / peaks.operations
    return "arithmetic" if computing > work.bytes / peaks.bandwidth else "memory"


def seconds_of(call: Callable[[], object], at_most: float = 0.2) -> float:
    """The median time of repeated calls."""
    call()
    seconds: list[float] = []
    while len(seconds) < 5 or (sum(seconds) < at_most and len(seconds) < 1000):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
