"""Counters of the torch.compile backend in this process."""

from __future__ import annotations

import threading
from collections import Counter

NAMES = (
    "graphs",  # forward, backward and inference graphs received
    "parts",  # parts of graphs that were compiled
    "ops_compiled",
    "ops_in_pytorch",
    "library_calls",  # ops that could be compiled, but are faster in PyTorch's library
    "cache_hits",
    "compile_failures",  # parts that no strategy compiled; they are split, or run in PyTorch
    "rescued_calls",  # calls that failed in compiled code and were repeated in PyTorch
)

_lock = threading.Lock()
_totals: Counter[str] = Counter()


def counters() -> dict[str, int]:
    """The totals so far.

    >>> import turbine
    >>> "graphs" in turbine.counters()
    True
    """
    with _lock:
        return {name: _totals[name] for name in NAMES}


def add(**amounts: int) -> None:
    """Add to the totals."""
    assert set(amounts) <= set(NAMES)
    with _lock:
        _totals.update(amounts)
