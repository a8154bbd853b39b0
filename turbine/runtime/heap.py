"""Freed memory that stays with the process, for the next call.

The memory of a call is one block. glibc gives a freed block of more than 32 MB back to the system,
and the next call takes a page fault for every 4 KB of it.
"""

from __future__ import annotations

import ctypes
import os

from turbine import config

# Parameters of mallopt, as <malloc.h> numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Larger blocks go back to the system all the same: mallopt takes an int, of the trim threshold too.
_MOST_MB = 1023


def keep_freed_blocks() -> None:
    """Have malloc keep freed blocks of up to `config.keep_memory_mb`.

    glibc raises both thresholds by itself, up to 32 MB, when a block is freed; this goes on where
    it ends. Thresholds that the environment sets stay as they are.
    """
    size = min(config.current().keep_memory_mb, _MOST_MB) << 20
    libc = ctypes.CDLL(None)
    if size and hasattr(libc, "gnu_get_libc_version") and not _is_tuned():
        libc.mallopt(_MMAP_THRESHOLD, size)
        libc.mallopt(_TRIM_THRESHOLD, 2 * size)


def _is_tuned() -> bool:
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in names)
