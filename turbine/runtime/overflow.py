"""Where a call runs: on the threads of its device, or on the caller.

Note [Busy threads]
IREE's threads run one call after another, so that a short call behind a long one waits for all of
it. A program that may be loaded twice has a second context, for calls on the calling thread. A call
goes there if the others will keep the threads for longer than it takes there. How long that is, is
known from earlier calls with about as many bytes of arguments.

Note [Short calls]
To wake threads for each dispatch may take longer than to compute it. So short calls are tried in
both contexts, and later ones go where the quickest was clearly quicker.
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
# See Note [Short calls]: seconds of a short call, how many are tried in each context, and the share
# of the time on threads that a call on the caller may take.
_SHORT, _TRIALS, _SHARE = 0.002, 4, 0.9

Invoke = Callable[[Any, int], Any]


@dataclass
class _Times:
    """Seconds of the calls in one context."""

    count: int = 0
    mean: float = 0.0
    least: float = float("inf")

    def add(self, seconds: float) -> None:
        self.mean = self.mean + _WEIGHT * (seconds - self.mean) if self.count else seconds
        self.least = min(self.least, seconds)
        self.count += 1


@dataclass
class _Places:
    """The times of similar calls: on the device's threads, and on the caller's."""

    threads: _Times = field(default_factory=_Times)
    caller: _Times = field(default_factory=_Times)

    def is_for_caller(self) -> bool:
        """Whether a call that finds no other is tried on the caller, or has been quicker there."""
        if self.threads.count < _TRIALS or self.threads.least > _SHORT:
            return False
        if self.caller.count < _TRIALS:
            return True
        return self.caller.least < _SHARE * self.threads.least

    def seconds_on_caller(self, thread_count: int) -> float:
        """How long a call takes there, or would take if threads shared its work evenly."""
        if self.caller.count:
            return self.caller.mean
        return self.threads.mean * thread_count if self.threads.count else float("inf")


@dataclass(eq=False)
class _Threads:
    """The calls on the threads of a placement, by when they would end if each were alone."""

    ends: dict[object, float] = field(default_factory=dict)

    def backlog(self) -> float:
        """Seconds for which the threads are busy."""
        now = perf_counter()
        return sum(end - now for end in list(self.ends.values()) if end > now)


class Overflow:
    """Calls one function, in one of two contexts; the sizes of arguments may be the same always."""

    def __init__(
        self, placement: Placement, on_threads: Invoke, on_caller: Invoke, *, is_static: bool
    ) -> None:
        self._is_static = is_static
        self._placement = placement
        self._on_threads = on_threads
        self._on_caller = on_caller
        self._places: dict[int, _Places] = {}

    def invoke(self, arguments: Any, result_count: int) -> Any:
        """Call with a VM list of arguments; returns the list of results."""
        size = 0 if self._is_static else _size(arguments).bit_length()
        places = self._places.setdefault(size, _Places())
        threads = _threads(self._placement)
        started = perf_counter()
        if self._is_for_caller(places, threads):
            results = self._on_caller(arguments, result_count)
            places.caller.add(perf_counter() - started)
            return results
        call = object()
        threads.ends[call] = started + places.threads.mean
        try:
            results = self._on_threads(arguments, result_count)
        finally:
            del threads.ends[call]
        places.threads.add(perf_counter() - started)
        return results

    def _is_for_caller(self, places: _Places, threads: _Threads) -> bool:
        if threads.ends:
            alone = places.seconds_on_caller(self._placement.thread_count)
            if threads.backlog() > alone:
                return True
        return places.is_for_caller()


@cache
def _threads(placement: Placement) -> _Threads:
    return _Threads()


def _size(arguments: Any) -> int:
    """Bytes of all buffers."""
    places = range(len(arguments))
    buffers = [n for n in places if not isinstance(arguments.get_variant(n), int | float)]
    return sum(arguments.get_as_object(n, iree.HalBufferView).byte_length for n in buffers)


os.register_at_fork(after_in_child=_threads.cache_clear)
