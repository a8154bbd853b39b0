"""Ops that place an exported program on devices, and order its execution."""

from __future__ import annotations

import re

from torch import Tensor

from turbine.mlir import devices, flow
from turbine.mlir.ir import Value
from turbine.ops import identity
from turbine.ops.argument_checks import require
from turbine.ops.ir_builder import Builder


def _check(op: str, moniker: str, tensor: Tensor) -> None:
    fact = f"moniker is {moniker!r}, expected letters, digits and underscores"
    require(re.fullmatch(r"\w+", moniker, re.ASCII) is not None, op, fact)


def _transfer(builder: Builder, moniker: str, tensor: Value) -> Value:
    return devices.transfer(tensor, devices.affinity(moniker), builder.location)


def _barrier(builder: Builder, moniker: str, tensor: Value) -> Value:
    return devices.barrier(tensor, devices.affinity(moniker), builder.location)


def _start(builder: Builder, tensor: Value) -> Value:
    return flow.start_compute(tensor, builder.location)


def _end(builder: Builder, tensor: Value) -> Value:
    return flow.end_compute(tensor, builder.location)


transfer_to_logical_device = identity.declare(
    "iree::transfer_to_logical_device(str moniker, Tensor tensor) -> Tensor",
    _transfer,
    check=_check,
    only_exported=True,
)
barrier_on_logical_device = identity.declare(
    "iree::barrier_on_logical_device(str moniker, Tensor tensor) -> Tensor",
    _barrier,
    check=_check,
    only_exported=True,
)
compute_barrier_start = identity.declare(
    "iree::compute_barrier_start(Tensor tensor) -> Tensor", _start
)
compute_barrier_end = identity.declare("iree::compute_barrier_end(Tensor tensor) -> Tensor", _end)
