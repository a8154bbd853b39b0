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
# The log of the kinds of errors of torch.export, which have a name of PyTorch's own alone.
KINDS_OF_ERRORS = "torch.export._trace"


@contextmanager
def mute_log(*names: str) -> Iterator[None]:
    """Mute loggers of PyTorch that repeat an error which is raised."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled


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
