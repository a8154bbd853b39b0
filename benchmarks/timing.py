"""Time calls side by side: callables in, the median and the best time of one call of each out."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]

WARM_UP_TURNS = 1
MIN_ROUNDS = 3
# Seconds before a turn: threads that the one before left spinning sleep by then.
PAUSE = 0.05
# Seconds of calls that do not count: woken threads share a core until the system spreads them.
WARM_UP = 0.05


@dataclass(frozen=True)
class Timing:
    """Seconds of one call. On a busy machine `best` says more than `median`."""

    median: float
    best: float


def round_robin(calls: Mapping[str, Call], *, seconds: float, block: int = 1) -> dict[str, Timing]:
    """Time each callable, in rounds that last about `seconds` together.

    A round gives every callable one turn of `block` calls, so that whatever else the machine does
    falls on all of them. A turn begins with a pause, in which threads of the one before come to
    rest (those of ONNX Runtime halve the speed of what follows), and calls that do not count.
    """
    for call in calls.values():
        for _ in range(WARM_UP_TURNS):
            _turn(call, block)
    turns: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < deadline:
        for name, call in calls.items():
            time.sleep(PAUSE)
            _warm_up(call)
            turns[name].append(_turn(call, block))
        rounds += 1
    return {name: Timing(statistics.median(taken), min(taken)) for name, taken in turns.items()}


def _warm_up(call: Call) -> None:
    deadline = time.perf_counter() + WARM_UP
    call()
    while time.perf_counter() < deadline:
        call()


def calls_in(seconds: float, call: Call) -> int:
    """About how many calls take so long; at least one."""
    call()
    return max(1, round(seconds / max(_turn(call, 3), 1e-7)))


def warn_if_busy() -> None:
    """Threads that wait for each other suffer most from other work, and distort every ratio."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(f"the machine is busy (load {load:.1f} on {cores} cores)", file=sys.stderr)


def _turn(call: Call, block: int) -> float:
    started = time.perf_counter()
    for _ in range(block):
        call()
    return (time.perf_counter() - started) / block
