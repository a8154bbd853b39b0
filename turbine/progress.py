"""Show the progress of slow work on stderr, after a delay."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TextIO

DELAY = 1.0  # seconds before the first word
LIBRARY_DELAY = 2.0  # the same where nobody ran a command
TERMINAL_PERIOD = 1.0  # seconds between rewrites of the line on a terminal
PLAIN_PERIOD = 10.0  # seconds between lines elsewhere
_ERASE_LINE = "\r\x1b[K"


@contextlib.contextmanager
def progress(what: str | Callable[[], str], delay: float = DELAY) -> Iterator[None]:
    """Show "compiling resnet18 ... 3 s" while the block runs, and erase it afterwards.

    A function is asked for the words each time. There is one line: work inside of other work, or in
    another thread, is not shown.

    >>> with progress("compiling resnet18"):
    ...     pass
    """
    if not _line.acquire(blocking=False):
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, sys.stderr, done, delay), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _line.release()


_line = threading.Lock()


def progress_on_terminal(what: str | Callable[[], str]) -> AbstractContextManager[None]:
    """The same for work of the library: on a terminal only, and after two seconds."""
    if sys.stderr is None or not sys.stderr.isatty():
        return contextlib.nullcontext()
    return progress(what, delay=LIBRARY_DELAY)


def _show(
    what: str | Callable[[], str], stream: TextIO, done: threading.Event, delay: float
) -> None:
    # A closed stderr must not end the work.
    with contextlib.suppress(OSError, ValueError):
        started, rewrites = time.monotonic(), stream.isatty()
        if done.wait(delay):
            return
        while True:
            words = what if isinstance(what, str) else what()
            line = f"{words} ... {time.monotonic() - started:.0f} s"
            _write(stream, _ERASE_LINE + _fit(line) if rewrites else f"{line}\n")
            if done.wait(TERMINAL_PERIOD if rewrites else PLAIN_PERIOD):
                break
        if rewrites:
            _write(stream, _ERASE_LINE)


def _fit(line: str) -> str:
    """A line that wraps cannot be rewritten."""
    return line[: shutil.get_terminal_size().columns - 1]


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
