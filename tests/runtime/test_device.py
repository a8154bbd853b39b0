"""Devices: lookup by URI and torch device, the current device, and shared memory."""

from __future__ import annotations

import doctest
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from turbine import dtypes, errors, target
from turbine.runtime import Device, executable, get_vm_instance, gpu_buffers
from turbine.runtime import device as devices
from turbine.runtime.device import DeviceState, get_device_from_torch, lookup_device_from_torch

LOCAL = [devices.SYNC, devices.TASK]


@pytest.mark.parametrize("uri", LOCAL)
def test_a_uri_gives_one_device(uri: str) -> None:
    device = Device(uri)
    assert device is Device(uri) is Device(f"{uri}://")
    assert (device.uri, device.driver_id, device.instance_cache_key) == (uri, uri, uri)
    assert device.hal_device is devices.device(uri)
    assert device.vm_instance is get_vm_instance()
    assert pickle.loads(pickle.dumps(device)) is device
    assert device.dump_device_info().splitlines()[0] == f"uri: {uri}"


def test_the_docstring_example_runs() -> None:
    assert doctest.testmod(devices).failed == 0


@pytest.mark.parametrize("uri", ["nope", "nope://0", "", "://"])
def test_an_unknown_driver_lists_the_valid_ones(uri: str) -> None:
    with pytest.raises(errors.DeviceError, match=r"unknown driver .*local-sync, local-task"):
        Device(uri)


@pytest.mark.parametrize("uri", ["local-task://7", "local-sync://default"])
def test_an_unknown_device_path_is_rejected(uri: str) -> None:
    with pytest.raises(errors.DeviceError, match=f"{uri}' has no device here"):
        Device(uri)


@pytest.mark.parametrize("driver", ["cuda", "hip", "vulkan"])
def test_a_driver_without_a_device_is_rejected(driver: str) -> None:
    try:
        devices.driver(driver).query_available_devices()
    # The library may be there, and find no hardware.
    except (errors.DeviceError, RuntimeError):
        with pytest.raises(errors.DeviceError, match=f"'{driver}.*' has no device here"):
            Device(f"{driver}://0")
    else:
        pytest.skip(f"this machine has a {driver} driver; one without it refuses")


def test_a_device_takes_either_a_uri_or_a_state() -> None:
    with pytest.raises(errors.ArgumentError, match="one of uri and device_state"):
        Device()
    with pytest.raises(errors.ArgumentError, match="one of uri and device_state"):
        Device("local-task", device_state=DeviceState(driver="local-task"))


def test_a_custom_state_creates_a_new_device() -> None:
    state = DeviceState(driver="local-sync", enumerated_info={"name": "mine"})
    device = Device(device_state=state)
    assert device is not Device("local-sync")
    assert device.hal_device is state.device
    assert device.instance_cache_key != Device("local-sync").instance_cache_key
    assert device.type_cache_key == Device("local-sync").type_cache_key
    assert DeviceState.from_uri("local-sync").enumerated_info is not None


def test_flags_compile_for_the_device() -> None:
    assert Device("local-task").compile_target_flags == target.parse("cpu").flags


def test_devices_of_one_target_have_equal_type_keys() -> None:
    sync, task = (Device(uri) for uri in LOCAL)
    assert sync.type_cache_key == task.type_cache_key
    assert sync.get_type_key_hash() == task.get_type_key_hash()
    assert target.host_fingerprint() in sync.type_cache_key


# Torch devices


def test_the_cpu_runs_on_all_cores() -> None:
    assert get_device_from_torch(torch.device("cpu")) is Device("local-task")
    assert devices.find(torch.device("cpu")) is devices.find("cpu") is Device("local-task")
    assert devices.find("local-sync") is Device("local-sync")


def test_an_unsupported_torch_device_is_none_or_an_error() -> None:
    assert lookup_device_from_torch(torch.device("meta")) is None
    with pytest.raises(errors.ArgumentError, match=r"unknown torch device 'meta'; valid: .*cpu"):
        get_device_from_torch(torch.device("meta"))


def test_lookup_without_create_returns_none() -> None:
    assert lookup_device_from_torch(torch.device("cuda", 7), create=False) is None


# The current device


def test_the_innermost_device_is_current() -> None:
    sync, task = (Device(uri) for uri in LOCAL)
    with sync as entered:
        assert entered is sync is Device.current()
        with task:
            assert Device.current() is task
        assert Device.current() is sync
    with pytest.raises(errors.DeviceError, match="no current device"):
        Device.current()


def test_devices_must_be_cleared_in_reverse_order() -> None:
    sync, task = (Device(uri) for uri in LOCAL)
    assert sync.set() is sync
    task.set()
    with pytest.raises(errors.DeviceError, match="local-sync> is not the current device"):
        sync.clear()
    task.clear()
    sync.clear()
    with pytest.raises(errors.DeviceError, match="which is None"):
        sync.clear()


def test_the_current_device_is_thread_local() -> None:
    seen = []
    with Device("local-sync"):
        thread = threading.Thread(target=lambda: seen.append(devices.current_or_none()))
        thread.start()
        thread.join()
    assert seen == [None]


# Tensors


@pytest.mark.parametrize("uri", LOCAL)
def test_tensors_are_imported_and_exported_without_a_copy(uri: str) -> None:
    device, tensor = Device(uri), torch.arange(6.0).reshape(2, 3)
    back = device.export_torch_tensor(device.import_torch_tensor(tensor), tensor)
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)


COPIED: list[Callable[[], torch.Tensor]] = [
    lambda: torch.arange(6.0).reshape(2, 3).t(),
    lambda: torch.arange(7.0)[1:],
    lambda: torch.tensor([1 + 2j]).conj(),
]


@pytest.mark.parametrize("make", COPIED, ids=["strided", "not aligned", "conjugated"])
def test_tensors_that_iree_cannot_import_are_copied(make: Callable[[], torch.Tensor]) -> None:
    device, tensor = Device("local-sync"), make()
    back = device.export_torch_tensor(device.import_torch_tensor(tensor), tensor)
    assert back.data_ptr() != tensor.data_ptr()
    assert torch.equal(back, tensor)


def test_tensors_without_host_memory_are_rejected() -> None:
    with pytest.raises(errors.ArgumentError, match="is on device meta, expected cpu"):
        Device("local-sync").import_torch_tensor(torch.ones(2, device="meta"))


def test_export_checks_shape_and_item_size() -> None:
    device = Device("local-sync")
    view = device.import_torch_tensor(torch.ones(2, 3))
    for wrong in (torch.ones(3, 2), torch.ones(2, 3, dtype=torch.float64)):
        with pytest.raises(errors.ArgumentError, match="cannot be a float"):
            device.export_torch_tensor(view, wrong)
    assert (
        device.export_torch_tensor(view, torch.ones(2, 3, dtype=torch.int32)).dtype is torch.int32
    )


# Failures of GPUs


def test_code_for_another_gpu_is_an_error_of_the_device() -> None:
    error = executable._refusal(RuntimeError("CUDA driver error 'CUDA_ERROR_NO_BINARY_FOR_GPU'"))
    assert isinstance(error, errors.DeviceError)
    assert "cuda:sm_80" in str(error)


def test_full_memory_says_how_to_get_some() -> None:
    full = ValueError("RESOURCE_EXHAUSTED; CUDA_ERROR_OUT_OF_MEMORY")

    class Allocator:
        def allocate_buffer_copy(self, *_: object) -> None:
            raise full

    gpu = SimpleNamespace(allocator=Allocator())
    with pytest.raises(errors.RunError, match=r"12 bytes cannot be copied.*\n.*empty_cache"):
        gpu_buffers.upload(gpu, numpy.zeros(12, numpy.uint8), (12,), dtypes.from_torch_name("int8"))
    assert "empty_cache" in str(executable._refusal(full))


class _FullMemory:
    """A context and a device whose allocator keeps freed memory."""

    def __init__(self) -> None:
        self.is_full = True
        self.runs = 0
        self.allocator = self

    def trim(self) -> None:
        self.is_full = False

    def invoke(self, *_: Any) -> None:
        if self.is_full:
            raise RuntimeError("RESOURCE_EXHAUSTED; CUDA_ERROR_OUT_OF_MEMORY")
        self.runs += 1


@pytest.mark.parametrize(("state", "runs"), [((), 1), ((("get", "set"),), 0)])
def test_memory_that_the_allocator_keeps_is_freed_when_it_is_missing(
    state: tuple[tuple[str, str], ...], runs: int
) -> None:
    gpu = _FullMemory()
    program = executable.Executable.__new__(executable.Executable)
    program.is_on_host, program._device, program._state = False, gpu, state
    # A program with state may have updated a part of it, so it does not run again.
    with nullcontext() if runs else pytest.raises(RuntimeError, match="OUT_OF_MEMORY"):
        program._run(gpu, None, None, None)
    assert (gpu.runs, gpu.is_full) == (runs, False)
