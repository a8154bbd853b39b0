"""A loaded program: code and weights bound to a device, called with buffer views."""

from __future__ import annotations

import atexit
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import iree.runtime as iree

from turbine import config, errors
from turbine.runtime import device as devices
from turbine.runtime import openmp, ranges, scheduling
from turbine.runtime.device import Placement
from turbine.runtime.overflow import Invoke, Overflow
from turbine.runtime.shared_lock import SharedLock
from turbine.signature import (
    GIVEN,
    IS_GIVEN,
    SHARED_FUNCTIONS,
    STORED_RESULTS,
    read_stored_results,
)

Providers = Callable[[], list[Any]]


@dataclass(eq=False)
class Values:
    """The state of one owner: in a context, or `saved` until the next call.

    It is what the program was exported with if it is in neither.
    """

    calls: Any  # the lock of its calls
    context: Any = None
    saved: list[Any] | None = None  # a VM list for each value
    lost: str | None = None  # why the values are gone, until a reset
    is_closed: bool = False


class Executable:
    """A VM context for each owner of a state; one context if there is none.

    Calls of a program without state run at the same time, as do those of several owners; calls of
    one owner take turns. See Note [Calls at the same time].

    `code` is bytes or a VM module, and is checked at once. `driver` is the URI of a device, or a
    function that returns devices, whose memory is that of the CPU if `is_on_host`. `providers`
    returns the weights at the first call. `state` has the names of the functions that read and set
    each value of the state; None if unknown. Calls of one that `needs_cores` do not share them with
    threads of PyTorch that wait for work. One that `may_overflow` is loaded a second time if its
    threads are busy or its calls are short; see Note [Busy threads]. `label` is what torch.profiler
    calls it.
    """

    def __init__(
        self,
        code: Any,
        driver: str | Callable[[], list[Any]],
        providers: Providers,
        *,
        state: Iterable[tuple[str, str]] | None = (),
        device_count: int = 1,
        needs_cores: bool = False,
        may_overflow: bool = False,
        label: str = "",
        is_on_host: bool = True,
    ) -> None:
        self._label = label
        self._placement = devices.placement()
        self.find_devices = (
            partial(_devices, driver, device_count, self._placement)
            if isinstance(driver, str)
            else driver
        )
        self._device: Any = None
        self._providers = providers
        self._needs_cores = needs_cores
        self._has_threads = driver != devices.SYNC
        self.is_on_host = driver in devices.ON_HOST if isinstance(driver, str) else is_on_host
        self._state = None if state is None else tuple(state)
        self._module = code if isinstance(code, iree.VmModule) else load_module(code)
        self._sharing = [self._module.lookup_function(name) for name in SHARED_FUNCTIONS]
        self._shared: Any = None  # what contexts have in common, once there is a context
        self._sources: list[Any] = []  # the weights among it
        self.own_values = Values(self._new_lock())
        self._owners = WeakSet([self.own_values])
        self._loading = threading.RLock()  # taken inside of those of owners
        self._on_caller = (
            Executable(self._module, devices.SYNC, providers, label=label) if may_overflow else None
        )
        _alive.add(self)

    def _new_lock(self) -> Any:
        has_state = self._state is None or bool(self._state)
        return threading.RLock() if has_state else SharedLock()

    def entry(
        self, name: str, owner: Values | None = None, *, is_static: bool = False
    ) -> EntryPoint:
        """A function of the program, by its name, for calls with the state of an owner.

        One that `is_static` takes arguments of the same sizes in each call.
        """
        function = self._module.lookup_function(name)
        if function is None:
            known = self._module.function_names
            raise errors.ArtifactError(errors.unknown("entry point", name, known))
        return EntryPoint(self, function, owner or self.own_values, is_static=is_static)

    def device(self, owner: Values | None = None) -> Any:
        """The device for arguments; loads the program on first use."""
        if self._device is None:
            owner = owner or self.own_values
            with owner.calls:
                self._load(owner)
        return self._device

    def invocation(self, function: Any, owner: Values, *, is_static: bool) -> Invoke:
        """A function to be called with arguments, on the threads that suit each call."""
        invoke = partial(self.invoke, function, owner)
        other = self._on_caller
        if other is None:
            return invoke
        on_caller = partial(other.invoke, function, other.own_values)
        return Overflow(self._placement, invoke, on_caller, is_static=is_static).invoke

    def invoke(self, function: Any, owner: Values, arguments: Any, result_count: int) -> Any:
        """Call with a VM list of buffer views and ints; returns the list of results.

        After a failed call a program with state is loaded again, with the state of the old context.
        """
        results = iree.VmVariantList(result_count)
        with owner.calls:
            context = owner.context or self._load(owner)
            if self._needs_cores:
                openmp.release_threads()
            is_batch = self._has_threads and scheduling.stop_preempting()
            opened = self._open_range(function) if ranges.is_profiling() else None
            try:
                self._run(context, function, arguments, results)
            except _FAILURES as error:
                if self._state != ():
                    self._drop_failed(context, owner)
                kept = _RESET if self._state is None else owner.lost
                raise errors.RunError(
                    f"the compiled program failed: {str(error).splitlines()[0]}",
                    hint=devices.memory_hint(error) or kept,
                ) from error
            finally:
                if opened is not None:
                    ranges.close_range(opened)
                if is_batch:
                    scheduling.preempt_again()
        return results

    def _run(self, context: Any, function: Any, arguments: Any, results: Any) -> None:
        """Run a function, again where freed memory that the allocator keeps was missing."""
        try:
            context.invoke(function, arguments, results)
        except _FAILURES as error:
            if self.is_on_host or devices.memory_hint(error) is None:
                raise
            self._device.allocator.trim()
            if self._state != ():
                raise
            context.invoke(function, arguments, results)

    def _open_range(self, function: Any) -> Any:
        return ranges.open_range(f"{self._label or self._module.name}.{function.name}")

    def copy(self, owner: Values) -> Values:
        """A new owner with a copy of the state of another."""
        with owner.calls:
            copied = Values(self._new_lock(), saved=self._read(self._load(owner)))
        with self._loading:
            self._owners.add(copied)
        return copied

    def reset(self) -> None:
        """Reset the program's own state to its initial values."""
        own = self.own_values
        with own.calls, self._loading:
            own.context = own.saved = own.lost = None
        if self._on_caller is not None:
            self._on_caller.reset()

    def restart(self, owner: Values) -> None:
        """Give an owner a copy of the program's own state."""
        own = self.own_values
        with own.calls:
            saved = self._read(self._load(own))
        with owner.calls:
            if owner.is_closed:
                raise _closed()
            owner.context, owner.saved, owner.lost = None, saved, None

    def close(self, owner: Values) -> None:
        """Drop the state of an owner, whose calls are errors from now on."""
        with owner.calls:
            owner.is_closed, owner.context, owner.saved = True, None, None

    def has_copies(self) -> bool:
        """Whether there are owners of the state beside the program itself."""
        return any(o is not self.own_values and not o.is_closed for o in self._all_owners())

    def _all_owners(self) -> list[Values]:
        with self._loading:
            return list(self._owners)

    def is_initial(self, owner: Values) -> bool:
        """Whether the state is what the program was exported with."""
        is_elsewhere = owner.is_closed or owner.lost is not None or owner.context is not None
        return owner.saved is None and not is_elsewhere

    def leave_parent(self) -> None:
        """Drop objects of the parent process; see Note [After a fork]."""
        keeps_state = self._state is None or bool(self._state)
        for owner in list(self._owners):
            if keeps_state and not self.is_initial(owner):
                owner.lost = (
                    "the program keeps state, and was called before this process was forked"
                )
            # Freeing it could wait for threads of the parent.
            devices.immortal((owner.context, owner.saved))
            owner.context = owner.saved = None
            owner.calls = self._new_lock()
        devices.immortal((self._shared, self._sources))
        self._device = self._shared = None
        self._loading = threading.RLock()

    def stop(self) -> None:
        """Block calls from other threads; see Note [Calls at exit]."""
        for owner in list(self._owners):
            owner.calls.acquire(timeout=_EXIT_TIMEOUT)

    def _load(self, owner: Values) -> Any:
        """The context of an owner, with its state; see Note [Shared values]."""
        with self._loading:
            if owner.context is None:
                _check(owner)
                context = self._create_context(is_given=owner.saved is not None)
                self._write(context, owner.saved or ())
                owner.context, owner.saved = context, None
            return owner.context

    def _create_context(self, *, is_given: bool) -> Any:
        """Bind the weights; initializers of the program run here, unless a state is given."""
        get, give = self._sharing
        if give is None or self._shared is None:
            providers = self._providers()
            context = self._bind(providers)
            if get is not None:
                self._shared, self._sources = iree.VmVariantList(0), providers
                context.invoke(get, iree.VmVariantList(0), self._shared)
            return context
        context = self._bind([] if is_given else self._providers(), is_given=is_given)
        context.invoke(give, self._shared, iree.VmVariantList(0))
        return context

    def _bind(self, providers: list[Any], *, is_given: bool = False) -> Any:
        """A new context, whose values are not computed if they will be given."""
        every = self.find_devices()
        self._device = every[0]
        instance = devices.instance()
        try:
            modules = [iree.create_hal_module(instance, devices=every)]
            if providers or is_given:
                modules.append(iree.create_io_parameters_module(instance, *providers))
            if is_given:
                modules.append(_given_module())
            return iree.VmContext(instance, [*modules, self._module])
        except _FAILURES as error:
            raise _refusal(error) from error

    def _drop_failed(self, context: Any, owner: Values) -> None:
        """Drop a context that failed, and save its state if it can be read."""
        self._save(context, owner)
        owner.context = None

    def _save(self, context: Any, owner: Values) -> None:
        owner.lost = "the program's state was lost in a call that failed"
        try:
            owner.saved = self._read(context) or None
        except _FAILURES:
            return
        owner.lost = None

    def _read(self, context: Any) -> list[Any]:
        """A copy of the state in a context."""
        values = []
        for getter, _ in self._state or ():
            values.append(iree.VmVariantList(1))
            function = self._module.lookup_function(getter)
            context.invoke(function, iree.VmVariantList(0), values[-1])
        return values

    def _write(self, context: Any, values: Sequence[Any]) -> None:
        """Set the state in a context, which takes over the memory."""
        for (_, setter), value in zip(self._state or (), values, strict=False):
            function = self._module.lookup_function(setter)
            context.invoke(function, value, iree.VmVariantList(0))


def _check(owner: Values) -> None:
    if owner.is_closed:
        raise _closed()
    if owner.lost is not None:
        raise errors.RunError(
            owner.lost, hint="load the artifact again in this process, or call reset()"
        )


def _closed() -> errors.StateError:
    return errors.StateError("the session is closed", hint="open another: artifact.session()")


def _devices(driver: str, count: int, placement: Placement) -> list[Any]:
    return [devices.device(driver, ordinal, placement) for ordinal in range(count)]


class EntryPoint:
    """One function of an executable."""

    def __init__(
        self, executable: Executable, function: Any, owner: Values, *, is_static: bool
    ) -> None:
        self.device: Callable[[], Any] = partial(executable.device, owner)
        self.invoke: Invoke = executable.invocation(function, owner, is_static=is_static)
        self.is_on_host = executable.is_on_host
        stored = function.reflection.get(STORED_RESULTS)
        if config.current().guard or stored is not None:
            from turbine.runtime import guard

            results = read_stored_results(stored or "[]")
            self.invoke = guard.guard_calls(self.invoke, self.device, results)


def align_code(code: bytes) -> memoryview:
    """A copy of compiled bytes at an aligned address."""
    memory = mmap.mmap(-1, len(code))
    memory[:] = code
    return memoryview(memory)


# Note [Calls at the same time]
# IREE synchronizes nothing inside of a context, and a program has to allow concurrent calls. One
# without state does: its globals are set when it is loaded, and each call has a stack, buffers and
# semaphores of its own. So threads share one context, and with it the weights, packed once.
#
# Note [Shared values]
# Each owner of a state has a context, so that owners do not wait for each other. What loading
# computes, such as packed weights, is in the first context, and later ones refer to it; see
# `mlir/shared_globals.py`. The initial state is not kept: a context that starts with it computes
# all values, and then gives up those that are shared. Older artifacts compute all for each owner.
#
# Note [Calls at exit]
# At exit, Python ends a daemon thread when it next takes the GIL. In the middle of IREE's C++ this
# aborts the process. So an exit handler waits for calls to end and keeps their locks. The main
# thread can still call, for exit handlers of the user that run later.
_EXIT_TIMEOUT = 10.0
_RESET = "the program is loaded again; its state is reset"
_FAILURES = (RuntimeError, ValueError, IndexError, KeyError)
_alive: WeakSet[Executable] = WeakSet()


def load_module(code: memoryview) -> Any:
    """Compiled bytes as a module of the VM."""
    try:
        return iree.VmModule.wrap_buffer(devices.instance(), code)
    except _FAILURES as error:
        raise _refusal(error) from error


@cache
def _given_module() -> Any:
    """The VM module in whose presence a program computes nothing when it is loaded."""
    interface = iree.PyModuleInterface(GIVEN, lambda _: None)
    interface.export(IS_GIVEN, "0v_i", lambda _: 1)
    return devices.immortal(interface.create())


# IREE's messages about missing parameters -> ours.
_MISSING = {
    r"required module 'io_parameters' not registered": "no parameters are given",
    r"no provider registered that handles scopes like '([^']*)'": "none are given for scope {0!r}",
    r"no parameter found in index with key '([^']*)'": "{0!r} is not among those given",
}


# CUDA's errors about code for another chip, or of a newer compiler than the driver knows.
_OF_OTHER_GPUS = re.compile(
    "CUDA_ERROR_(NO_BINARY_FOR_GPU|INVALID_PTX|INVALID_IMAGE|UNSUPPORTED_PTX_VERSION)"
)


def _refusal(error: Exception) -> errors.TurbineError:
    for pattern, reason in _MISSING.items():
        match = re.search(pattern, str(error))
        if match is not None:
            return errors.ParameterError(
                f"the program reads external parameters, and {reason.format(*match.groups())}",
                hint='pass them by scope: parameter_providers={"model": "weights.irpa"}',
            )
    if _OF_OTHER_GPUS.search(str(error)):
        return errors.DeviceError(
            f"this GPU or its driver cannot run the program's code: {error}",
            hint='compile it for this GPU; code for "cuda:sm_80" runs on all newer ones',
        )
    if (hint := devices.memory_hint(error)) is not None:
        return errors.RunError(f"there is no memory to load the program: {error}", hint=hint)
    return errors.ArtifactVersionError(
        f"this IREE could not load the program: {error}",
        hint="compile the model again with the installed versions",
    )


def _leave_parent() -> None:
    for executable in list(_alive):
        executable.leave_parent()


def stop_calls() -> None:
    """Stop the calls of all programs; see Note [Calls at exit]."""
    for executable in list(_alive):
        executable.stop()


os.register_at_fork(after_in_child=_leave_parent)
atexit.register(stop_calls)
