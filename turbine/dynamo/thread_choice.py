"""Choose by measurement whether a part between PyTorch ops runs on one thread or on all.

PyTorch's threads spin after each of its ops. To run on all cores a part has to end them first, and
the next op of PyTorch starts them again. How long a part takes is not known before it runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from turbine import errors
from turbine.runtime import device

log = logging.getLogger(__name__)

Call = Callable[[Sequence[Any]], Sequence[Any]]
# A shorter call stays on one thread.
WORTH_A_TRIAL = 0.5e-3
# Timed calls of each kind; the first is not counted.
TURNS = 4
# What PyTorch takes to start its threads again.
_RESTART = 0.1e-3
_RESTART_OF_A_THREAD = 20e-6


class ThreadChoice:
    """Calls a part, on one thread first, and then as it is faster.

    `load_all` loads the code for all threads, and `tell` is called when it is chosen.
    """

    def __init__(self, one: Call, load_all: Callable[[], Call], tell: Callable[[], None]) -> None:
        self._one = one
        self._load_all = load_all
        self._tell = tell
        self._all: Call | None = None
        self._chosen: Call | None = None
        self._times: dict[bool, list[float]] = {False: [], True: []}

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        """The results of the part."""
        if self._chosen is not None:
            return self._chosen(args)
        times = self._times[self._all is not None]
        call = self._all or self._one
        started = time.perf_counter()
        results = call(args)
        times.append(time.perf_counter() - started)
        if len(times) >= TURNS:
            self._decide()
        return results

    def _decide(self) -> None:
        one, on_all = (min(times[1:], default=0.0) for times in self._times.values())
        if self._all is None and one >= WORTH_A_TRIAL:
            try:
                self._all = self._load_all()
            except errors.TurbineError as error:
                log.info("a part stays on one thread: %s", error)
                self._chosen = self._one
        elif self._all is not None and on_all + _restart() < one:
            log.info("a part takes %.2g s on one thread and %.2g s on all", one, on_all)
            self._chosen = self._all
            self._tell()
        else:
            self._chosen = self._one


def _restart() -> float:
    return _RESTART + _RESTART_OF_A_THREAD * device.thread_count()
