"""Name the machine that a tuned configuration is valid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turbine.compiler import host
from turbine.runtime.device import thread_count
from turbine.target import Target

# What code for CUDA tensors is shown for where there is no GPU.
_CAPABILITY = 90


@dataclass(frozen=True)
class Machine:
    """A CPU with its threads, or a GPU."""

    kind: str  # "cpu" or "cuda"
    name: str  # "cpu:neoverse-n1, 2 threads", "NVIDIA H200, sm_90", or "sm_90" for any such GPU
    details: str = ""  # what else times depend on

    def is_served_by(self, name: str) -> bool:
        """Whether a configuration for the machine of a name is for this one."""
        is_any = self.kind == "cuda" and "," not in self.name
        return name == self.name or (is_any and name.endswith(f", {self.name}"))


def of_arguments(named: Mapping[str, Any], kind: str) -> Machine:
    """The machine that a call with these arguments runs on."""
    if kind == "cpu":
        return of_target(host.default_target())
    tensors = (value for value in named.values() if isinstance(value, Tensor) and value.is_cuda)
    first = next(tensors, None)
    return _any_gpu(_CAPABILITY) if first is None else _gpu(first.get_device())


def of_target(target: Target) -> Machine:
    """The machine that code for a target runs on: for a GPU, the one here if it is such a one."""
    if target.kind == "cpu":
        return Machine("cpu", f"{target.text}, {thread_count()} threads", target.features)
    capability = target.capability or 0
    if torch.cuda.is_available() and _capability(torch.cuda.current_device()) == capability:
        return _gpu(torch.cuda.current_device())
    return _any_gpu(capability)


def _any_gpu(capability: int) -> Machine:
    return Machine("cuda", f"sm_{capability}")


def _gpu(index: int) -> Machine:
    name = torch.cuda.get_device_name(index).replace(",", "")
    return Machine("cuda", f"{name}, sm_{_capability(index)}")


def _capability(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor
