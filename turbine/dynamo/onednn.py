"""Trace without oneDNN, whose ops cannot be compiled, and run with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_of_user: ContextVar[bool | None] = ContextVar("onednn_of_user", default=None)


@contextmanager
def switched_off() -> Iterator[None]:
    """Turn oneDNN off: with it, PyTorch traces an LSTM layer as one op without a decomposition."""
    before = torch._C._get_mkldnn_enabled()
    token = _of_user.set(before)
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
        _of_user.reset(token)


@contextmanager
def as_set_by_user() -> Iterator[None]:
    """Restore the user's setting of oneDNN inside of `switched_off`."""
    now, wanted = torch._C._get_mkldnn_enabled(), _of_user.get()
    torch._C._set_mkldnn_enabled(now if wanted is None else wanted)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(now)
