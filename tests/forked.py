"""Run a function in a forked child and return its result."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
from collections.abc import Callable

TIMEOUT = 60


def in_child(work: Callable[[], str]) -> str:
    """The result of `work` in a forked child, which must not hang."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "no answer"
        faulthandler.dump_traceback_later(TIMEOUT - 5)  # where it hangs
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, answer.encode()[:4000])
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], TIMEOUT)
        if not ready:
            os.kill(child, signal.SIGKILL)
            return "the child hung"
        answer = os.read(reader, 4000).decode()
        return answer or "the child died"
    finally:
        os.close(reader)
        os.waitpid(child, 0)
