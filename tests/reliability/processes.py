"""Start, kill and inspect child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MARK = "TURBINE_TEST_PROCESS"  # in the environment of a program and of all it starts
PATIENCE = 60.0


def start(program: str, *words: str, mark: str, **env: str) -> subprocess.Popen[str]:
    """A Python program that is found again, with all it starts, by its mark."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env, MARK: mark},
    )


def marked(mark: str) -> list[int]:
    """The processes with a mark that live; a zombie has no environment."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _all_pids() if wanted in _environment(pid).split(b"\0")]


def ends(mark: str) -> bool:
    """Whether all processes with a mark end soon."""
    return soon(lambda: not marked(mark))


def soon(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether a condition comes true within the time a busy machine may need."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
