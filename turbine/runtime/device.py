"""IREE devices of this process: made once per driver and never torn down."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

import iree.runtime as iree

from turbine import config, errors
from turbine.target import Target

SYNC = "local-sync"
TASK = "local-task"

# Note [Devices outlive results]
# A buffer of IREE's heap allocator refers to its device without owning it, so a result that
# is freed after the device crashes the process, at the latest when the interpreter ends.
# One device per driver is therefore kept forever; the leak checker would report just that.
iree._binding.disable_leak_checker()

_lock = threading.Lock()


@cache
def instance() -> Any:
    """The VM instance of this process."""
    return immortal(iree.VmInstance())


def driver_for(wanted: Target, mflop: float) -> str:
    """Small programs run on the calling thread, large ones on all cores."""
    if wanted.kind != "cpu":
        return wanted.drivers[0]
    return SYNC if mflop < config.current().sync_limit_mflop else TASK


def device(driver: str, ordinal: int = 0) -> Any:
    """A device of a driver, by default its default one."""
    with _lock:
        return _device(driver, ordinal)


def immortal(thing: Any) -> Any:
    """The thing, which is never freed from now on; see Note [Devices outlive results]."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


@cache
def _device(driver: str, ordinal: int) -> Any:
    if driver not in iree.query_available_drivers():
        raise errors.ArtifactTargetError(
            errors.unknown("driver", driver, iree.query_available_drivers()),
            hint="install a build of the IREE runtime that has this driver",
        )
    try:
        # A driver of its own: those that IREE shares hold threads; see Note [After a fork].
        return immortal(_open(immortal(iree._binding.create_hal_driver(driver)), driver, ordinal))
    except (RuntimeError, ValueError) as error:
        raise errors.ArtifactTargetError(
            f"driver {driver!r} has no device here: {error}"
        ) from error


def _open(made: Any, driver: str, ordinal: int) -> Any:
    """The CPU is as many devices as are asked for; others are those there are."""
    if ordinal == 0 or driver in (SYNC, TASK):
        return made.create_default_device()
    present = made.query_available_devices()
    if ordinal >= len(present):
        raise ValueError(f"there are {len(present)}, and the program wants number {ordinal}")
    return made.create_device(present[ordinal]["device_id"])


# Note [After a fork]
# The threads of a device stay in the parent, and a call that waits for them waits forever.
# A child makes devices of its own, and programs loaded before the fork are loaded anew.
def _start_over() -> None:
    global _lock
    _lock = threading.Lock()
    _device.cache_clear()


os.register_at_fork(after_in_child=_start_over)
