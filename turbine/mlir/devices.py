"""Assign values to devices with attributes of the IR, and count the devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from iree.compiler.dialects import flow
from iree.compiler.ir import (
    ArrayAttr,
    Attribute,
    Block,
    DictAttr,
    Location,
    Module,
    Operation,
    Value,
)

from turbine.mlir import rewrites
from turbine.mlir.flow import unknown_sizes
from turbine.mlir.matchers import walk

# Attributes that name devices, on functions, globals and transfers.
_PLACES = ("arg_attrs", "res_attrs", "stream.affinity", "target", "iree.abi.affinity")
_NAME = re.compile(r"#hal\.device\.promise<@__device_(\d+)")


def affinity(device: int | str, queues: Sequence[int] | None = None) -> Attribute:
    """The attribute of a device, which compiler flags declare."""
    chosen = "" if queues is None else f", {list(queues)}"
    return Attribute.parse(f"#hal.device.promise<@__device_{device}{chosen}>")


def place_arguments(block: Block, places: Mapping[int, Attribute]) -> None:
    """Assign arguments of a function to devices, by position."""
    if not places:
        return
    each = [
        DictAttr.get({"iree.abi.affinity": places[index]} if index in places else {})
        for index in range(len(block.arguments))
    ]
    block.owner.attributes["arg_attrs"] = ArrayAttr.get(each)


def transfer(value: Value, to: Attribute, location: Location) -> Value:
    """Transfer a tensor to a device."""
    sizes = unknown_sizes(value, location)
    return flow.TensorTransferOp(value, sizes, to, results=[value.type], loc=location).result


def barrier(value: Value, to: Attribute, location: Location) -> Value:
    """A tensor on a device, after a barrier."""
    sizes = unknown_sizes(value, location)
    return flow.TensorBarrierOp(value, sizes, to, results=[value.type], loc=location).result


def with_known_devices(module: Module, devices: int) -> Module:
    """The module, or a copy without transfers to devices that are missing."""

    def is_to_missing_device(op: Operation) -> bool:
        if op.name not in _PLACING:
            return False
        return devices == 1 or _NAME.search(str(op.attributes["target"])) is None

    if not any(is_to_missing_device(op) for op in walk(module.operation)):
        return module
    copy = rewrites.clone(module)
    rewrites.rewrite(copy, [lambda op: [op.operands[0]] if is_to_missing_device(op) else None])
    return copy


_PLACING = {flow.TensorTransferOp.OPERATION_NAME, flow.TensorBarrierOp.OPERATION_NAME}


def count(module: Module) -> int:
    """The number of devices that the IR names, at least one."""
    texts = [
        str(op.attributes[place])
        for op in walk(module.operation)
        for place in _PLACES
        if place in op.attributes
    ]
    ordinals = [int(number) for text in texts for number in _NAME.findall(text)]
    return max(ordinals, default=0) + 1
