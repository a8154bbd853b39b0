"""IREE devices of this process: a URI or a torch device in, a device that is never freed out."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import iree.runtime as iree
from iree.runtime import version as iree_version

from turbine import config, errors, target
from turbine.runtime import heap
from turbine.target import Target

if TYPE_CHECKING:
    import torch

SYNC = "local-sync"
TASK = "local-task"
ON_HOST = (SYNC, TASK)  # drivers whose programs share memory with the CPU


@dataclass(frozen=True)
class Placement:
    """The threads of a device on the CPU, and the cores that they are pinned to."""

    threads: int = 0  # 0: as many as PyTorch's; without it, one for each core
    cores: tuple[int, ...] = ()  # (): all that the process may use

    @property
    def thread_count(self) -> int:
        """How many threads there are."""
        torch = sys.modules.get("torch")
        cores = len(os.sched_getaffinity(0)) if torch is None else int(torch.get_num_threads())
        return self.threads or len(self.cores) or cores


# Note [Devices outlive results]
# A buffer of IREE's heap allocator refers to its device without owning it, so a result that
# is freed after the device crashes the process, at the latest when the interpreter ends.
# So one device per driver is kept forever, which IREE's leak checker would report.
iree._binding.disable_leak_checker()

_lock = threading.Lock()


@cache
def instance() -> Any:
    """The VM instance of this process."""
    return immortal(iree.VmInstance())


get_vm_instance = instance  # the name in iree-turbine


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """A HAL device and its properties; by default the default device of a driver."""

    driver: Any  # its name, or IREE's object
    device: Any = None
    vm_instance: Any = None
    enumerated_info: Mapping[str, Any] | None = None
    torch_device: Any = None
    torch_stream: Any = None
    dlpack_device_type_code: int = 0

    def __post_init__(self) -> None:
        named = isinstance(self.driver, str)
        chosen = driver(self.driver) if named else self.driver
        own = device(self.driver) if named else None
        filled = {
            "driver": chosen,
            "device": self.device or own or immortal(chosen.create_default_device()),
            "vm_instance": self.vm_instance or instance(),
            "enumerated_info": self.enumerated_info or {},
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def from_uri(uri: str) -> DeviceState:
        """The state of the device of a URI."""
        name, _, path = uri.partition("://")
        hal = device(uri)
        listed = driver(name).query_available_devices()
        ours = [info for n, info in enumerate(listed) if path in (info["path"], str(n))]
        info: dict[str, Any] = next(iter([*ours, *listed]), {})
        return DeviceState(driver=driver(name), device=hal, enumerated_info=info)


class Device:
    """A device that programs run on; equal URIs give the same object.

    `with device:` makes it the current device of this thread, on which a `Launchable` runs.

    >>> from turbine.runtime import Device
    >>> with Device("local-task"):
    ...     Device.current()
    <turbine device local-task>
    """

    uri: str
    _state: DeviceState | None

    def __new__(cls, uri: str | None = None, *, device_state: DeviceState | None = None) -> Device:
        """The device of a URI, or one for a `DeviceState`."""
        if (uri is None) == (device_state is None):
            raise errors.ArgumentError(
                "a device is made from one of uri and device_state",
                hint='write Device("local-task")',
            )
        uri = None if uri is None else uri.removesuffix("://")
        if uri is not None and uri in _known:
            return _known[uri]
        made = super().__new__(cls)
        made._state = device_state
        if uri is None:
            made.uri = repr(made.hal_device)
            return made
        made.uri = uri
        device(uri)  # raises for an unknown URI
        return _known.setdefault(uri, made)

    def __repr__(self) -> str:
        return f"<turbine device {self.uri}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (self.uri,)

    @property
    def state(self) -> DeviceState:
        """IREE's objects for the device; see Note [After a fork]."""
        return self._state or DeviceState.from_uri(self.uri)

    @property
    def hal_device(self) -> Any:
        """IREE's object for the device, in this process."""
        return device(self.uri) if self._state is None else self._state.device

    @property
    def vm_instance(self) -> Any:
        """The VM instance of the device's programs."""
        return instance() if self._state is None else self._state.vm_instance

    @property
    def driver_id(self) -> str:
        """The name of the device's driver."""
        return self.uri.partition(":")[0]

    @property
    def is_on_host(self) -> bool:
        """Whether its programs share memory with the CPU."""
        return self.driver_id in ON_HOST

    @property
    def sync(self) -> bool:
        """Whether calls wait for their results; always true."""
        return True

    @property
    def compile_target_flags(self) -> tuple[str, ...]:
        """Flags of IREE's compiler for code of the device."""
        return self.target.flags

    @property
    def target(self) -> Target:
        """The compilation target for the device."""
        kinds = [kind for kind in target.KINDS.values() if self.driver_id in kind.drivers]
        if not kinds:
            raise errors.DeviceError(
                f"Turbine has no target for driver {self.driver_id!r}",
                hint="compile with IREE's own tools, and load the code with Launchable.from_file",
            )
        return target.parse(kinds[0].name)

    @property
    def instance_cache_key(self) -> str:
        """A key that is unique for each device."""
        return self.uri if self._state is None else f"{self.uri}:{id(self._state.device)}"

    @property
    def type_cache_key(self) -> str:
        """A key that is equal for devices that run the same code."""
        host = target.host_fingerprint() if self.target.kind == "cpu" else ""
        release = str(iree_version.VERSION)
        return ";".join([release, *self.compile_target_flags, host])

    def get_type_key_hash(self) -> str:
        """A digest of `type_cache_key`, which names files of compiled code."""
        return hashlib.sha256(self.type_cache_key.encode()).hexdigest()[:40]

    def dump_device_info(self) -> str:
        """The properties of the device, one per line."""
        facts = {"uri": self.uri, **(self.state.enumerated_info or {})}
        lines = [f"{name}: {value}" for name, value in facts.items()]
        number = facts.get("device_id")
        details = "" if number is None else self.state.driver.dump_device_info(number)
        return "\n".join([*lines, *details.splitlines()])

    def create_hal_module(self) -> Any:
        """The HAL module for a VM context on the device."""
        return iree.create_hal_module(self.vm_instance, self.hal_device)

    def import_torch_tensor(self, tensor: torch.Tensor) -> Any:
        """A tensor as a buffer view: zero-copy, or a copy if IREE cannot import the memory."""
        library = self._library_of(tensor)
        row = library.dtype_of(tensor)
        library.wait()
        view = library.to_view(self.hal_device, tensor, row, [])
        if view is None:
            raise errors.ArgumentError(
                f"the tensor {library.problem(tensor, row)}", hint=library.remedy(tensor, row)
            )
        return view

    def export_torch_tensor(self, view: Any, like: torch.Tensor) -> torch.Tensor:
        """A buffer view as a tensor with the dtype of `like`.

        It has the view's memory on the CPU, and is a copy on the GPU or from there.
        """
        library = self._library_of(like)
        row = library.dtype_of(like)
        if list(view.shape) != list(like.shape) or view.byte_length != like.nbytes:
            raise errors.ArgumentError(
                f"the buffer {view} cannot be a {row.name}{[*like.shape]}",
                hint=f"pass a tensor of shape {[*view.shape]} with elements of that size",
            )
        tensor: torch.Tensor = library.from_view(self.hal_device, view, row)
        return tensor

    def _library_of(self, tensor: torch.Tensor) -> Any:
        """The module that passes a tensor to the device."""
        from turbine.runtime import gpu_buffers, torch_buffers

        self.check_shares_tensors()
        return torch_buffers if self.is_on_host else gpu_buffers.of(tensor)

    def check_shares_tensors(self) -> None:
        """Raise unless tensors can be passed to the device."""
        if self.driver_id not in _TAKE_TENSORS:
            raise errors.DeviceError(
                f"tensors cannot be passed to {self.uri} yet",
                hint=f"devices that take tensors: {', '.join(_TAKE_TENSORS)}",
            )

    def setup_iree_action(self) -> None:
        """Make PyTorch's writes visible to IREE: wait for its current stream on a GPU."""
        self.check_shares_tensors()
        if not self.is_on_host:
            from turbine.runtime import cuda_tensors

            cuda_tensors.wait()

    def finalize_iree_action(self, external_timepoint: None = None) -> None:
        """Make IREE's writes visible to PyTorch; nothing to do, as calls wait."""
        self.check_shares_tensors()

    @staticmethod
    def current() -> Device:
        """The current device of this thread."""
        device = current_or_none()
        if device is None:
            raise errors.DeviceError(
                "no current device", hint="set one: `with Device('local-task'):`"
            )
        return device

    def set(self) -> Device:
        """Make this the current device, until it is cleared."""
        _stack.set((*_stack.get(), self))
        return self

    def clear(self) -> None:
        """Restore the device that was current before this one."""
        if current_or_none() is not self:
            raise errors.DeviceError(
                f"{self} is not the current device, which is {current_or_none()}",
                hint="clear devices in the reverse order of setting them",
            )
        _stack.set(_stack.get()[:-1])

    def __enter__(self) -> Device:
        return self.set()

    def __exit__(self, *_: object) -> None:
        self.clear()


# Drivers of devices that tensors can be passed to.
_TAKE_TENSORS = (SYNC, TASK, "cuda")
_known: dict[str, Device] = {}
_stack: ContextVar[tuple[Device, ...]] = ContextVar("turbine_devices", default=())


def current_or_none() -> Device | None:
    """The current device of this thread, if one was set."""
    return next(reversed(_stack.get()), None)


def lookup_device_from_torch(
    torch_device: torch.device | str, *, create: bool = True
) -> Device | None:
    """The device for tensors of a torch device; None if none exists yet."""
    uri = _uri_of_torch(torch_device)
    if uri is None or (not create and uri not in _known):
        return None
    return Device(uri)


def get_device_from_torch(torch_device: torch.device | str) -> Device:
    """The device for tensors of a torch device.

    >>> from turbine.runtime.device import get_device_from_torch
    >>> get_device_from_torch("cpu")
    <turbine device local-task>
    """
    found = lookup_device_from_torch(torch_device)
    if found is None:
        raise errors.ArgumentError(errors.unknown("torch device", str(torch_device), _OF_TORCH))
    return found


# Types of torch devices and the drivers of their hardware.
_OF_TORCH = {"cpu": TASK, "cuda": "cuda", "hip": "hip"}


def find(place: Device | torch.device | str) -> Device:
    """The device for a URI or a torch device; "cpu" and "cuda:0" are torch devices."""
    if isinstance(place, Device):
        return place
    text = str(place)
    is_uri = isinstance(place, str) and ("://" in text or text.partition(":")[0] not in _OF_TORCH)
    return Device(text) if is_uri else get_device_from_torch(place)


def _uri_of_torch(torch_device: torch.device | str) -> str | None:
    kind, _, number = str(torch_device).partition(":")
    torch = sys.modules.get("torch")
    # PyTorch calls AMD's devices "cuda" too.
    if kind == "cuda" and torch is not None and torch.version.hip:
        kind = "hip"
    driver = _OF_TORCH.get(kind)
    return driver if driver is None or kind == "cpu" else f"{driver}://{number or 0}"


def driver_for(wanted: Target, load: float) -> str:
    """Run small programs on the calling thread, large ones on the threads of the options.

    `load` is about how many million operations of a matmul take as long.
    """
    if wanted.kind != "cpu":
        return wanted.drivers[0]
    chosen = placement()
    is_small = load < config.current().sync_limit_mflop
    is_on_caller = is_small or (chosen.thread_count == 1 and not chosen.cores)
    return SYNC if is_on_caller else TASK


def memory_hint(error: Exception) -> str | None:
    """The fix for an out-of-memory error of IREE; None for other errors."""
    if not any(name in str(error) for name in _NO_MEMORY):
        return None
    return (
        "smaller batches need less memory; torch.cuda.empty_cache() gives back what PyTorch keeps"
    )


# As IREE and CUDA name it.
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY")


def load_of(manifest: Mapping[str, Any]) -> float:
    """The load of an artifact's call; older ones have their operations alone."""
    load: float = manifest["load"] if "load" in manifest else manifest["mflop"]
    return load


def thread_count() -> int:
    """How many threads calls of programs that are loaded now run on."""
    return placement().thread_count


def placement() -> Placement:
    """Where programs that are loaded now run: the options `threads` and `cores`."""
    options = config.current()
    allowed = os.sched_getaffinity(0)
    missing = [core for core in options.cores if core not in allowed]
    if missing:
        raise errors.ConfigError(
            f"this process may not use core {missing[0]}: cores={options.cores}",
            hint=f"it may use {', '.join(map(str, sorted(allowed)))}",
        )
    if options.cores and options.threads > len(options.cores):
        raise errors.ConfigError(
            f"threads={options.threads} do not fit on cores={options.cores}",
            hint="a thread is pinned to a core of its own: give as many cores, or fewer threads",
        )
    return Placement(options.threads, options.cores)


def is_long(driver: str, load: float) -> bool:
    """Whether a call takes so long, about a millisecond, that all cores should be free for it."""
    return driver == TASK and load >= _LONG * thread_count()


# The work that a core does in about a millisecond.
_LONG = 100


_DEFAULT = Placement()


def device(uri: str, ordinal: int = 0, placement: Placement = _DEFAULT) -> Any:
    """The device of a URI, such as "cuda://0"; a driver's name alone means its default device.

    `ordinal` selects another device of the driver. Each placement has devices of its own.
    """
    with _lock:
        placement = placement if uri == TASK else _DEFAULT
        return _device(uri, ordinal, config.current().guard, placement)


def driver(name: str) -> Any:
    """A driver by its name."""
    with _lock:
        return _driver(name, _DEFAULT)


def immortal(value: Any) -> Any:
    """The object, kept alive forever; see Note [Devices outlive results]."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    return value


@cache
def _driver(name: str, placement: Placement) -> Any:
    known = iree.query_available_drivers()
    if name not in known:
        raise errors.DeviceError(
            errors.unknown("driver", name, known),
            hint="install a build of the IREE runtime that has this driver",
        )
    if name == TASK:
        # Read when the driver is created, for all of its devices.
        iree.flags.parse_flags(f"--task_topology_max_group_count={placement.thread_count}")
    if name == "cuda":
        # Its pools give freed memory back to the driver, where the allocator "caching" keeps it.
        iree.flags.parse_flags("--cuda_async_allocations=false")
    heap.keep_freed_blocks()
    try:
        # Not IREE's shared driver, which has threads; see Note [After a fork].
        with _on_cores(placement.cores):
            return immortal(iree._binding.create_hal_driver(name))
    except (RuntimeError, ValueError) as error:
        raise _no_device(name, error) from error


@contextmanager
def _on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """Run on certain cores; IREE pins threads to those that the thread which creates them may use.

    Its flag for this, task_topology_cpu_ids, can be set only once in a process.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@cache
def _device(uri: str, ordinal: int, is_guarded: bool, placement: Placement) -> Any:
    name, _, path = uri.partition("://")
    driver = _driver(name, placement)
    try:
        if path:
            found = driver.create_device_by_uri(uri, allocators=_allocators(name, is_guarded))
        else:
            found = _open(driver, name, ordinal, _allocators(name, is_guarded))
    except (RuntimeError, ValueError) as error:
        raise _no_device(uri, error) from error
    return immortal(found)


def _no_device(uri: str, error: Exception) -> errors.DeviceError:
    return errors.DeviceError(
        f"driver {uri!r} has no device here: {error}",
        hint="`turbine doctor` lists the drivers that have one",
    )


def _allocators(driver: str, is_guarded: bool) -> list[str]:
    """The allocators; guarded, one that fills memory with 0xCD to show uninitialized reads.

    On GPUs, one that keeps freed memory for later calls, whose allocation would take milliseconds.
    """
    if is_guarded:
        return ["debug"]
    if driver == "cuda":
        return [_CACHING]
    return [] if driver in ON_HOST else ["caching"]


# For each kind of memory: any size of a block, the most bytes in use and kept, and the most blocks
# that are kept. A block is used again for as many bytes alone.
_CACHING = "caching:device_local=*;8gib;64,host_local=*;1gib;64"


def _open(made: Any, driver: str, ordinal: int, allocators: list[str]) -> Any:
    """A device by its ordinal; CPU drivers make as many as needed."""
    if ordinal == 0 or driver in ON_HOST:
        return made.create_default_device(allocators=allocators)
    present = made.query_available_devices()
    if ordinal >= len(present):
        raise ValueError(f"there are {len(present)}, and the program uses number {ordinal}")
    return made.create_device(present[ordinal]["device_id"], allocators=allocators)


# Note [After a fork]
# A child has no copy of a device's threads, and a call that waits for them waits forever. So a
# child creates new devices, and loads programs again that were loaded before the fork.
def _reset_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _device.cache_clear()
    _driver.cache_clear()


os.register_at_fork(after_in_child=_reset_after_fork)
