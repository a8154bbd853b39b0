"""Run functions in threads, and raise if one fails or hangs."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence

TIMEOUT = 60


def run_threads(work: Sequence[Callable[[], object]], *, timeout: float = TIMEOUT) -> None:
    """Call each function in a thread of its own, all at once."""
    faults: list[str] = []
    start = threading.Barrier(len(work))

    def run(function: Callable[[], object]) -> None:
        try:
            start.wait(TIMEOUT)
            function()
        except BaseException:
            faults.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(f,), daemon=True) for f in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    assert faults == [], "\n".join(faults)
    assert not any(thread.is_alive() for thread in threads)
