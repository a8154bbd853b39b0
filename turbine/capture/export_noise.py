"""Suppress what PyTorch prints about a trace that failed: the exception has the same text."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TextIO

_LOGGER = "torch.fx.experimental.symbolic_shapes"
_USELESS = "Unable to find user code"


@contextmanager
def quiet_failures() -> Iterator[None]:
    """Suppress the graph of a failed trace on stderr, and one warning; all else is printed."""
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(_is_useful)
    try:
        with redirect_stderr(_WithoutFailedGraphs(sys.stderr)):
            yield
    finally:
        logger.removeFilter(_is_useful)


# The log of ops that raise for the sizes of their arguments.
FAKE_TENSORS = "torch._subclasses.fake_tensor"


@contextmanager
def mute_log(name: str) -> Iterator[None]:
    """Mute a logger of PyTorch that repeats an error which is raised."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _is_useful(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_USELESS)


class _WithoutFailedGraphs(io.TextIOBase):
    """A stream without the graphs that torch.export prints while it handles their exception."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        # The exception that this thread handles: other threads are not affected.
        if getattr(sys.exc_info()[1], "partial_fx_graph", None) is not None:
            return len(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()
