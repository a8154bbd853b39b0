"""The compiler process: reads requests from a pipe, compiles, writes outcomes back."""

from __future__ import annotations

import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from turbine.compiler import session


def main() -> None:
    """Serve until the pipe closes: `python -m turbine.compiler.worker <fd> <parent pid>`."""
    pipe = Connection(int(sys.argv[1]))
    threading.Thread(target=_die_with, args=(int(sys.argv[2]),), daemon=True).start()
    _prefer_for_out_of_memory()
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        pipe.send(_serve(request))


def _serve(request: session.Request) -> session.Outcome | BaseException:
    try:
        return session.run(request)
    except Exception as error:
        return error


def _die_with(parent: int) -> None:
    """End when the parent is gone, even in the middle of a compile."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _prefer_for_out_of_memory() -> None:
    """When memory runs out, let the kernel end this process rather than the user's."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("900")
    except OSError:
        return


if __name__ == "__main__":
    main()
