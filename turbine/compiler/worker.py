"""The compiler process: reads requests from a pipe, compiles, writes outcomes back."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from turbine.compiler import scratch, session
from turbine.compiler.diagnostics import ERROR, Diagnostic


def main() -> None:
    """Serve until the pipe closes; arguments: its number, the parent's pid, a scratch folder."""
    number, parent, folder = sys.argv[1:]
    pipe = Connection(int(number))
    # The linker that IREE starts must not hold the pipe open after we are gone.
    os.set_inheritable(pipe.fileno(), False)
    scratch.make(folder)
    threading.Thread(target=_die_with, args=(int(parent), folder), daemon=True).start()
    _prefer_for_out_of_memory()
    logging.basicConfig(format="%(message)s")
    session.log.setLevel(logging.DEBUG)
    while True:
        try:
            pipe.send(_serve(pipe.recv()))
        except (EOFError, OSError):  # the other end is closed
            _end(folder)


def _serve(request: session.Request) -> session.Outcome:
    """The outcome of a request; exceptions are sent as text, as not all of them pickle."""
    try:
        return session.run(request)
    except Exception as error:
        return session.Outcome(None, (Diagnostic(ERROR, f"the compiler raised {error!r}", ()),))


def _die_with(parent: int, folder: str) -> None:
    """End when the parent is gone, even in the middle of a compile."""
    while os.getppid() == parent:
        time.sleep(0.5)
    _end(folder)


_ending = threading.Lock()


def _end(folder: str) -> None:
    """End at once, with the linker if one runs; the parent is not there to clean up."""
    with _ending:
        scratch.remove(folder)
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _prefer_for_out_of_memory() -> None:
    """When memory runs out, let the kernel end this process rather than the user's."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("900")
    except OSError:
        return


if __name__ == "__main__":
    main()
