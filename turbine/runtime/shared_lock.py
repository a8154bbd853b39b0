"""A lock that any number of threads hold at once, until one thread takes it for good."""

from __future__ import annotations

import threading
import time
from collections import deque
from threading import get_ident

_POLL = 0.001


class SharedLock:
    """A `with` block is never delayed by others, unless another thread has called `acquire`.

    It counts before it looks, and `acquire` sets before it counts, so that none slips through.
    """

    def __init__(self) -> None:
        self._inside: deque[None] = deque()
        self._owner: int | None = None

    def __enter__(self) -> None:
        self._inside.append(None)
        if self._owner is not None and self._owner != get_ident():
            self._inside.pop()
            threading.Event().wait()

    def __exit__(self, *_: object) -> None:
        self._inside.pop()

    def acquire(self, timeout: float) -> bool:
        """Stop other threads at their next `with`, and wait until none is inside of one."""
        self._owner = get_ident()
        deadline = time.monotonic() + timeout
        while self._inside and time.monotonic() < deadline:
            time.sleep(_POLL)
        return not self._inside
