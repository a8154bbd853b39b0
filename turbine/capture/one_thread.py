"""Let one thread trace at a time: PyTorch's tracing changes global state.

The lock is the one that Dynamo holds while it compiles, so exports and torch.compile exclude each
other as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def tracing_lock() -> Iterator[None]:
    """Hold the lock of tracing."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        yield


def traces(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that traces: it holds the lock."""

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with tracing_lock():
            return function(*args, **kwargs)

    return locked
