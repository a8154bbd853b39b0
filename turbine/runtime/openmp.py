"""Threads of PyTorch's OpenMP: let them go before a long call.

After a parallel op its threads spin for a while, in case the next one comes soon: on x86_64 for
about 13 ms. Until then they take half of each core from the threads of a compiled program.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import cache

_LIBRARY = re.compile(r"/lib(gomp|iomp5|omp)[-.\w]*\.so[.\d]*$")
_is_forked = False
_SOFT = 1  # omp_pause_soft: the runtime keeps its settings, and starts threads when it needs them


def release_threads() -> None:
    """End the threads that wait for this thread's next parallel op, which starts them again.

    Takes 0.1 ms where there are any, and a microsecond where there are none. In a forked child
    there are none, and OpenMP would wait forever for those of the parent.
    """
    if "torch" in sys.modules and not _is_forked:
        _pause()(_SOFT)


@cache
def _pause() -> Callable[[int], int]:
    """The function of the OpenMP runtime that this process has loaded, if there is one."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps if _LIBRARY.search(line.rstrip())}
    except OSError:
        return _do_nothing
    for path in sorted(paths):
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is not None:
            return pause  # type: ignore[no-any-return]
    return _do_nothing


def _do_nothing(kind: int) -> int:
    return kind


def _note_fork() -> None:
    global _is_forked
    _is_forked = True


os.register_at_fork(after_in_child=_note_fork)
