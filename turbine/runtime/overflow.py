"""Calls that find the threads of their device busy: queue behind others, or run on the caller.

Note [Busy threads]
IREE's threads run one call after another, so that a short call behind a long one waits for all of
it. A program that may be loaded twice has a second context, for calls on the calling thread. A call
goes there if the others will keep the threads for longer than it takes there. How long that is, is
known from earlier calls with about as many bytes of arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

import iree.runtime as iree

from turbine.runtime.device import Placement

# Of the newest call in a mean.
_WEIGHT = 0.2

Invoke = Callable[[Any, int], Any]


@dataclass
class _Times:
    """Mean seconds of calls, None before the first: on the device's threads, on the caller's."""

    on_threads: float | None = None
    on_caller: float | None = None


@dataclass(eq=False)
class _Threads:
    """The calls on the threads of a placement, by when they would end if each were alone."""

    ends: dict[object, float] = field(default_factory=dict)

    def backlog(self) -> float:
        """Seconds for which the threads are busy."""
        now = perf_counter()
        return sum(end - now for end in list(self.ends.values()) if end > now)


class Overflow:
    """Calls one function, in one of two contexts."""

    def __init__(self, placement: Placement, on_threads: Invoke, on_caller: Invoke) -> None:
        self._placement = placement
        self._on_threads = on_threads
        self._on_caller = on_caller
        self._times: dict[int, _Times] = {}

    def invoke(self, arguments: Any, result_count: int) -> Any:
        """Call with a VM list of arguments; returns the list of results."""
        times = self._times.setdefault(_size(arguments).bit_length(), _Times())
        threads = _threads(self._placement)
        started = perf_counter()
        if threads.ends and threads.backlog() > self._seconds_on_caller(times):
            results = self._on_caller(arguments, result_count)
            times.on_caller = _mean(times.on_caller, perf_counter() - started)
            return results
        call = object()
        threads.ends[call] = started + (times.on_threads or 0.0)
        try:
            results = self._on_threads(arguments, result_count)
        finally:
            del threads.ends[call]
        times.on_threads = _mean(times.on_threads, perf_counter() - started)
        return results

    def _seconds_on_caller(self, times: _Times) -> float:
        if times.on_caller is not None:
            return times.on_caller
        if times.on_threads is not None:
            return times.on_threads * self._placement.thread_count
        return float("inf")


@cache
def _threads(placement: Placement) -> _Threads:
    return _Threads()


def _mean(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _WEIGHT * (newest - mean)


def _size(arguments: Any) -> int:
    """Bytes of all buffers."""
    places = range(len(arguments))
    buffers = [n for n in places if not isinstance(arguments.get_variant(n), int | float)]
    return sum(arguments.get_as_object(n, iree.HalBufferView).byte_length for n in buffers)


os.register_at_fork(after_in_child=_threads.cache_clear)
