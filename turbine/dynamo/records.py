"""Records of compiled graphs, written during compilation and read by `explain`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class CompiledCode(Protocol):
    """How a part was compiled."""

    @property
    def strategy(self) -> str:
        """The strategy with which IREE compiled it, or "triton"."""

    @property
    def seconds(self) -> float:
        """How long that took."""

    @property
    def cached(self) -> bool:
        """Whether it came from the cache."""


class CompiledPart(Protocol):
    """The attributes of a part that reports use."""

    ops: Counter[str]
    mflop: float
    megabytes: float
    kernels: Counter[str]  # of Turbine's library, and those made for this part

    @property
    def compiled(self) -> CompiledCode | None:
        """None if it is not compiled yet, or runs in PyTorch."""

    def wait(self) -> Any:
        """Wait until it is compiled."""


@dataclass(frozen=True)
class LeftOp:
    """An op that runs in PyTorch."""

    op: str
    reason: str
    where: str | None  # the line of the user's code
    is_chosen: bool = False  # it could be compiled, but PyTorch's library is faster


@dataclass(eq=False)
class GraphRecord:
    """A graph of AOTAutograd, "forward", "backward" or "inference"; or "eager", not compiled."""

    kind: str
    parts: list[CompiledPart] = field(default_factory=list)
    left: list[LeftOp] = field(default_factory=list)
    updates: int = 0  # calls of kernels that update inputs in place
    is_dropped: bool = False  # PyTorch is faster, and runs the graph


_lock = threading.Lock()
_listeners: list[list[GraphRecord]] = []


def new(kind: str) -> GraphRecord:
    """Add a record to all current collections."""
    record = GraphRecord(kind)
    with _lock:
        for listener in _listeners:
            listener.append(record)
    return record


@contextmanager
def collect() -> Iterator[list[GraphRecord]]:
    """Collect the records of graphs that any thread compiles in the block."""
    heard: list[GraphRecord] = []
    with _lock:
        _listeners.append(heard)
    try:
        yield heard
    finally:
        with _lock:
            _listeners.remove(heard)
