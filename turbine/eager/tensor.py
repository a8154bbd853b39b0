"""Tensors on the "turbine" device.

PyTorch's C++ code knows them as tensors on its "lazy" device. That device has no backend of its own
in PyTorch's packages, is no accelerator, and its gradients are computed by the calling thread, so
that nothing changes for tensors on other devices.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from turbine.eager.layouts import layout_of
from turbine.eager.storage import Storage, Value, View, whole

DEVICE = "turbine"
# How PyTorch's C++ code knows the device.
INSIDE = torch.device("lazy", 0)
# The values of a tensor; set by `recorder`, which runs ops.
read: Callable[[DeviceTensor, str], Tensor] = NotImplemented


@cache
def _device() -> torch.device:
    """PyTorch knows the name once the device is registered."""
    return torch.device(DEVICE, 0)


class DeviceTensor(torch.Tensor):
    """A tensor on the "turbine" device; `ops` gives it __torch_dispatch__."""

    _storage: Storage
    _view: View

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device."""
        return _device()

    @property
    def data(self) -> Tensor:
        """The same memory, without a gradient and with a version of its own."""
        return wrap(self._storage, self._view)

    @data.setter
    def data(self, new: Any) -> None:
        torch.Tensor.data.__set__(self, new)  # type: ignore[attr-defined]
        self._storage, self._view = new._storage, new._view

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As of other tensors; on the device already, this tensor."""
        device = kwargs.get("device", args[0] if args else None)
        if not isinstance(device, (str, torch.device)) or torch.device(device).type != DEVICE:
            return super().to(*args, **kwargs)
        check_index(device)
        kwargs.pop("device", None)
        rest = args[1:] if args and args[0] is device else args
        dtype = rest[0] if rest else kwargs.pop("dtype", None)
        return super().to(dtype or self.dtype, *rest[1:], **kwargs)

    def type(self, *args: Any, **kwargs: Any) -> Any:
        """The name of the type, or the tensor as another one."""
        found = super().type(*args, **kwargs)
        return found.replace(INSIDE.type, DEVICE) if isinstance(found, str) else found

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """The values, and the device."""
        with torch.no_grad():
            shown = repr(self.cpu().detach())
        end = f", device='{self.device}'"
        if self.grad_fn is not None:
            end += f", grad_fn=<{type(self.grad_fn).__name__}>"
        elif self.requires_grad:
            end += ", requires_grad=True"
        head = "Parameter containing:\n" if isinstance(self, torch.nn.Parameter) else ""
        return f"{head}{shown[:-1]}{end})"

    def __format__(self, spec: str) -> str:
        """The number, as for tensors on other devices, or the values."""
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def numpy(self, *, force: bool = False) -> Any:
        """Raise as for other devices, unless forced."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None) -> Any:
        """Raise as for other devices."""
        return self.numpy()

    def data_ptr(self) -> int:
        """Where the values are in memory until the next write: they are computed here."""
        return read(self, "data_ptr").data_ptr()

    def tolist(self) -> Any:
        """The values as Python numbers."""
        return self.detach().cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A leaf with values of its own."""
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        found = memo.get(id(self))
        if found is None:
            found = self._copy(memo).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                found = torch.nn.Parameter(found, self.requires_grad)
            if self.grad is not None:
                found.grad = copy.deepcopy(self.grad, memo)
            memo[id(self)] = found
        return found

    def _copy(self, memo: dict[int, Any]) -> Tensor:
        """The same view of a copy of the storage, which tensors that share it have in common."""
        base = self._view.whole()
        found = memo.get(id(self._storage))
        if found is None:
            copied: DeviceTensor = wrap(self._storage, base).clone()  # type: ignore[assignment]
            if copied._storage.value.layout is not base.layout:
                return self.detach().clone()
            found = memo[id(self._storage)] = copied._storage
        return wrap(found, self._view)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as a CPU tensor, which loads where there is no such device."""
        on_cpu = self.detach().cpu().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            on_cpu = torch.nn.Parameter(on_cpu, self.requires_grad)
        return on_cpu.__reduce_ex__(protocol)

    def __dlpack__(self, **options: Any) -> Any:
        """The values, in CPU memory of their own."""
        return self.detach().cpu().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Where `__dlpack__` has the values."""
        return torch.empty(0).__dlpack_device__()


def check_index(device: Any) -> None:
    """Raise for a device with the name of this one and another index: there is one."""
    if torch.device(device).index:
        raise RuntimeError(f"there is one turbine device, turbine:0, and no {device}")


_make = torch.Tensor._make_wrapper_subclass


def wrap(storage: Storage, view: View) -> Tensor:
    """A tensor that is a view of a storage."""
    layout = view.layout
    wrapper = layout.wrapper
    if wrapper is None:
        size, stride, offset, dtype = layout.size, layout.stride, layout.offset, layout.dtype
        wrapper = DeviceTensor, size, stride, offset, None, dtype, torch.strided, INSIDE
        layout.wrapper = wrapper
    made: DeviceTensor = _make(*wrapper)
    made._storage = storage
    made._view = view
    return made


def wrap_value(value: Value) -> Tensor:
    """A tensor of a value."""
    return wrap(Storage(value), whole(value.layout))


def from_cpu(tensor: Tensor) -> Tensor:
    """A tensor of values that nothing else refers to."""
    return wrap_value(Value(layout_of(tensor), tensor))
