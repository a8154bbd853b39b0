"""Invoke a function of a VM context: argument and result lists in, seconds out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turbine.runtime.device import Device
from turbine.runtime.untyped_call import push_fences


def invoke_vm_function(
    device: Device,
    is_async: bool,
    vm_context: Any,
    vm_function: Any,
    arg_list: Any,
    ret_list: Any,
    *,
    timer: Callable[[], float] = lambda: 0.0,
) -> float:
    """Call a function and wait for its results; `is_async` says that it takes fences.

    Gives how much the timer moved on. A context is for one thread at a time.
    """
    done = push_fences(device.hal_device, arg_list) if is_async else None
    started = timer()
    vm_context.invoke(vm_function, arg_list, ret_list)
    if done is not None:
        done.wait()
    return timer() - started
