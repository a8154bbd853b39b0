"""Register "turbine" as a PyTorch device: factories, and `torch.turbine`.

PyTorch lets one device be named from Python, and takes it for the accelerator of the process from
then on. `enable` keeps that from code for the CPU: `torch.accelerator` and `pin_memory` answer as
before. Where there is another accelerator, gradients on it would fail, so `enable` refuses.
"""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import trace_rules
from torch.nn.modules import module as modules
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils.backend_registration import rename_privateuse1_backend
from torch.utils.data import get_worker_info
from torch.utils.data._utils import collate

from turbine import config, errors
from turbine.eager import autocast, ops, recorder
from turbine.eager.tensor import DEVICE, INSIDE, DeviceTensor, check_index, from_cpu
from turbine.eager.trace_tree import LOCK

_MODES = ("lazy", "op")
_enabled = False
_library: torch.library.Library | None = None


def enable() -> None:
    """Make "turbine" a device of this process: `torch.ones(3, device="turbine")`.

    Nothing in the process changes before this call; a second one changes nothing.

    Raises:
        DeviceError: if PyTorch has another accelerator in this process, such as a GPU.

    >>> import torch, turbine
    >>> turbine.eager.enable()
    >>> torch.ones(3, device="turbine") + 1
    tensor([2., 2., 2.], device='turbine:0')
    """
    global _enabled
    mode = config.get("eager")
    if mode not in _MODES:
        raise errors.ConfigError(errors.unknown("value of eager", mode, _MODES))
    with LOCK:
        if _library is None:
            _refuse_accelerators()
            _register()
        _enabled = True


def disable() -> None:
    """Let no more tensors be made on the device; those that exist still work."""
    global _enabled
    _enabled = False


def is_enabled() -> bool:
    """Whether tensors can be made on the device."""
    return _enabled


def _refuse_accelerators() -> None:
    if torch.accelerator.is_available():
        other = torch.accelerator.current_accelerator()
        raise errors.DeviceError(
            f"PyTorch has one accelerator in a process: it would take turbine for it, not {other}",
            hint=f"hide {other} from PyTorch, for example with CUDA_VISIBLE_DEVICES=",
        )


def _register() -> None:
    global _library
    _keep_accelerator()
    rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, _module())
    torch._C._acc.register_python_privateuseone_hook(_Hooks())
    torch._C._acc.register_python_privateuseone_device_guard(_Guard())
    _keep_parameters()
    torch.set_autocast_dtype(DEVICE, torch.bfloat16)  # as on a CPU, where float16 is slow
    collate.default_collate_fn_map[DeviceTensor] = _collate
    torch.serialization.register_package(_BEFORE_PYTORCH, lambda storage: None, _restore)
    trace_rules.add("turbine.eager")  # torch.compile should compile users' code, not this
    for module in (_foreach_utils, optimizer):
        module._foreach_supported_types.append(DeviceTensor)
    _library = torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "Lazy"):
        _library.impl("empty.memory_format", _empty, key)
        _library.impl("empty_strided", _empty_strided, key)
        _library.impl("_copy_from", _copy_from, key)
        _library.impl("_efficientzerotensor", _zeros, key)
        for op in _MADE_ON_CPU:
            _library.impl(op, partial(_make_on_cpu, op), key)


# Factories whose C++ code is for certain devices.
_MADE_ON_CPU = [
    torch.ops.aten.tril_indices.default,
    torch.ops.aten.triu_indices.default,
    torch.ops.aten.kaiser_window.default,
    torch.ops.aten.kaiser_window.periodic,
    torch.ops.aten.kaiser_window.beta,
]


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def _keep_accelerator() -> None:
    """Let `torch.accelerator` and `pin_memory` know the accelerator that they know now."""
    accelerator = torch._C._accelerator_getAccelerator()
    torch._C._accelerator_getAccelerator = lambda: accelerator
    pin: Callable[..., Tensor] = torch.Tensor.pin_memory

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        if device is None and accelerator is None:
            raise RuntimeError("Cannot access accelerator device when none is available.")
        return pin(self, device or accelerator)

    pin_memory.__doc__ = pin.__doc__
    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]


_BEFORE_PYTORCH = 1  # PyTorch's own packages have priorities from 10 on


class _LoadedStorage(torch.UntypedStorage):
    """Memory that torch.load read for a tensor on the device, which copies it."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(DEVICE, 0)


def _restore(storage: Any, location: str) -> Any:
    """What torch.load does for `map_location="turbine"`."""
    if location.partition(":")[0] != DEVICE:
        return None
    check_index(location)
    storage.__class__ = _LoadedStorage
    return storage


def _collate(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    """A batch of a DataLoader. What its workers send to other processes arrives on the CPU."""
    if get_worker_info() is not None:
        batch = [one.cpu() for one in batch]
    return torch.stack(list(batch))


def _keep_parameters() -> None:
    """Let modules keep their parameters when they move: optimizers and ties know these objects."""
    has_parts = modules.is_traceable_wrapper_subclass  # type: ignore[attr-defined]
    apply: Callable[..., torch.nn.Module] = torch.nn.Module._apply

    def is_swapped(one: Any) -> bool:
        return isinstance(one, DeviceTensor) or has_parts(one)

    def apply_and_swap(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        is_here = any(isinstance(one, DeviceTensor) for one in self._parameters.values())
        torch.__future__.set_swap_module_params_on_conversion(swaps or is_here)
        try:
            return apply(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)

    modules.is_traceable_wrapper_subclass = is_swapped  # type: ignore[attr-defined, assignment]
    torch.nn.Module._apply = apply_and_swap  # type: ignore[method-assign]


def _check(device: Any) -> None:
    is_internal = device is not None and torch.device(device).type == INSIDE.type
    if not _enabled and not is_internal:  # ops on tensors that exist make others
        raise errors.DeviceError(
            "the turbine device is disabled", hint="call turbine.eager.enable()"
        )
    if device is not None:
        check_index(device)


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    _check(device)
    made = torch.empty(
        size,
        dtype=dtype,
        device="cpu",
        memory_format=memory_format or torch.contiguous_format,
    )
    return from_cpu(made)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Tensor:
    _check(device)
    return from_cpu(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _zeros(size: Sequence[int], *, device: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    _check(device)
    return from_cpu(torch.zeros(size, dtype=dtype))


def _make_on_cpu(op: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    _check(device)
    return from_cpu(op(*args, device="cpu", **kwargs))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Called by C++ code that does not let tensors decide."""
    copied: Tensor = ops.dispatch(DeviceTensor, torch.ops.aten.copy_.default, (), [target, source])
    return copied


def _module() -> types.ModuleType:
    module = types.ModuleType("torch.turbine", "The turbine device.")
    functions: list[Callable[..., Any]] = [
        device_count,
        current_device,
        set_device,
        synchronize,
        memory_allocated,
        empty_cache,
        manual_seed,
        manual_seed_all,
        get_rng_state,
        set_rng_state,
        is_initialized,
        _is_in_bad_fork,
        get_amp_supported_dtype,
    ]
    for function in functions:
        setattr(module, function.__name__, function)
    module.is_available = is_enabled  # type: ignore[attr-defined]
    module.device = contextlib.nullcontext  # type: ignore[attr-defined]
    return module


def is_initialized() -> bool:
    """Whether the device is set up."""
    return _library is not None


def device_count() -> int:
    """How many devices there are."""
    return 1


def current_device() -> int:
    """The index of the device."""
    return 0


def set_device(device: Any) -> None:
    """Nothing: there is one device."""


def synchronize(device: Any = None) -> None:
    """Run all ops that were called."""
    with LOCK:
        recorder.flush("synchronize")


def memory_allocated(device: Any = None) -> int:
    """Bytes of the values that tensors on the device hold."""
    held = {
        one._storage.value.data.untyped_storage().data_ptr(): one._storage.value.data
        for one in gc.get_objects()
        if type(one) is DeviceTensor and one._storage.value.data is not None
    }
    return sum(data.untyped_storage().nbytes() for data in held.values())


def empty_cache() -> None:
    """Nothing: freed memory belongs to the process."""


def manual_seed(seed: int) -> None:
    """Seed the generator, which is PyTorch's for the CPU."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Nothing: torch.manual_seed seeds the generator for the CPU, which the device uses."""


def get_rng_state(device: Any = None) -> Tensor:
    """The state of the generator."""
    return torch.get_rng_state()


def set_rng_state(state: Tensor, device: Any = None) -> None:
    """Set the state of the generator."""
    torch.set_rng_state(state)


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes of autocast, which asks for them when it begins."""
    autocast.begin()
    return autocast.DTYPES
