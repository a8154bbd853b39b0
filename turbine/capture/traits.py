"""Marks that a user puts on tensors and a later export reads."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils.weak import WeakTensorKeyDictionary

# The scope of external parameters without one.
SCOPE = "model"


@dataclass(frozen=True)
class ExternalTensorTrait:
    """Marks a tensor as an external parameter, found by name in the archive of a scope.

    An empty scope is exported as "model".

    >>> import torch
    >>> from turbine.aot import ExternalTensorTrait
    >>> table = torch.ones(4)
    >>> ExternalTensorTrait("lookup", "table").set(table)
    >>> ExternalTensorTrait.get(table)
    ExternalTensorTrait(external_scope='lookup', external_name='table')
    """

    external_scope: str
    external_name: str

    @staticmethod
    def get(tensor: torch.Tensor) -> ExternalTensorTrait | None:
        """The mark of a tensor, if it has one."""
        return _EXTERNAL.get(tensor)

    def set(self, tensor: torch.Tensor) -> None:
        """Mark a tensor; the mark goes with it and not with its copies."""
        _EXTERNAL[tensor] = self


def external_address(tensor: torch.Tensor) -> ExternalTensorTrait | None:
    """The mark of a tensor, with the default scope in place of an empty one."""
    mark = ExternalTensorTrait.get(tensor)
    if mark is None or mark.external_scope:
        return mark
    return replace(mark, external_scope=SCOPE)


@dataclass(frozen=True)
class DeviceAffinity:
    """A device by its ordinal, and which of its queues to use; by default any.

    >>> import torch
    >>> from turbine import aot
    >>> second = aot.DeviceAffinity(1)
    >>> out = aot.export(torch.nn.ReLU(), args=(torch.ones(2),), arg_device={0: second})
    >>> "iree.abi.affinity = #hal.device.promise<@__device_1>" in out.text()
    True
    """

    ordinal: int
    queues: Sequence[int] | None = None


@dataclass(frozen=True)
class DeviceTensorTrait(DeviceAffinity):
    """Marks a tensor to be held on a device.

    >>> import torch
    >>> from turbine.aot import DeviceTensorTrait
    >>> table = torch.ones(4)
    >>> DeviceTensorTrait(1).set(table)
    >>> DeviceTensorTrait.get(table).ordinal
    1
    """

    @staticmethod
    def get(tensor: torch.Tensor) -> DeviceTensorTrait | None:
        """The mark of a tensor, if it has one."""
        return _PLACED.get(tensor)

    def set(self, tensor: torch.Tensor) -> None:
        """Mark a tensor; the mark goes with it and not with its copies."""
        _PLACED[tensor] = self


_PLACED: MutableMapping[torch.Tensor, DeviceTensorTrait] = WeakTensorKeyDictionary()
_EXTERNAL: MutableMapping[torch.Tensor, ExternalTensorTrait] = WeakTensorKeyDictionary()
