"""IREE devices of this process: made once per driver and never torn down."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

import iree.runtime as iree

from turbine import errors

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
    return _immortal(iree.VmInstance())


def device(driver: str) -> Any:
    """The default device of a driver."""
    _refuse_after_fork()
    with _lock:
        return _device(driver)


@cache
def _device(driver: str) -> Any:
    if driver not in iree.query_available_drivers():
        raise errors.ArtifactTargetError(
            errors.unknown("driver", driver, iree.query_available_drivers()),
            hint="install a build of the IREE runtime that has this driver",
        )
    try:
        return _immortal(iree.get_driver(driver).create_default_device())
    except (RuntimeError, ValueError) as error:
        raise errors.ArtifactTargetError(
            f"driver {driver!r} has no device here: {error}"
        ) from error


def _immortal(thing: Any) -> Any:
    """See Note [Devices outlive results]."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


_made_in = os.getpid()


def _refuse_after_fork() -> None:
    """Threads do not survive a fork, so a forked child makes devices of its own."""
    global _made_in
    if os.getpid() != _made_in:
        _made_in = os.getpid()
        _device.cache_clear()
        instance.cache_clear()
