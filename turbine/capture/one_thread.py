"""One thread traces at a time: PyTorch's tracing changes state of the whole process.

The lock is the one that Dynamo holds while it compiles, so an export and a torch.compile of two
threads take turns as well.
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
    """Wait until no other thread traces, and keep others from it."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        yield


def traces(function: Callable[P, R]) -> Callable[P, R]:
    """A function that traces."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with tracing_lock():
            return function(*args, **kwargs)

    return alone
