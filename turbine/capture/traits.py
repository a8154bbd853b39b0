"""Marks that a user puts on tensors and a later export reads."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True)
class ExternalTensorTrait:
    """Marks a tensor as an external parameter, found by name in the archive of a scope.

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


_EXTERNAL: MutableMapping[torch.Tensor, ExternalTensorTrait] = WeakTensorKeyDictionary()
