"""Record which buffers a model writes to while it is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class BufferWrites(TorchDispatchMode):
    """Record writes to buffers, those of ops included whose schemas do not declare them."""

    def __init__(self, buffers: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers = buffers
        self._versions = {name: buffer._version for name, buffer in buffers.items()}
        self._statistics: list[Tensor] = []

    def find_written(self) -> dict[str, Tensor]:
        """The buffers that were written."""
        return {name: buffer for name, buffer in self._buffers.items() if self._changed(name)}

    def _changed(self, name: str) -> bool:
        buffer = self._buffers[name]
        is_declared = buffer._version != self._versions[name]
        return is_declared or any(buffer is one for one in self._statistics)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Its schema declares no writes, and no version changes.
        if func is aten.native_batch_norm.default:
            _, _, _, mean, variance, is_training, *_ = args
            if is_training:
                self._statistics += [one for one in (mean, variance) if one is not None]
        return func(*args, **(kwargs or {}))
