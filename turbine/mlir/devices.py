"""Say on which device values are: ordinals in, attributes of IR out; and count the devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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

from turbine.mlir.matching import walk

# Where IR names devices, on functions, globals and ops that move tensors.
_PLACES = ("arg_attrs", "res_attrs", "stream.affinity", "target", "iree.abi.affinity")
_NAME = re.compile(r"#hal\.device\.promise<@__device_(\d+)")


def affinity(ordinal: int, queues: Sequence[int] | None) -> Attribute:
    """A device by its number, to be declared by the flags of the compiler."""
    chosen = "" if queues is None else f", {list(queues)}"
    return Attribute.parse(f"#hal.device.promise<@__device_{ordinal}{chosen}>")


def place_arguments(block: Block, places: Mapping[int, Attribute]) -> None:
    """Say on which devices a function takes some of its arguments, by their places."""
    if not places:
        return
    each = [
        DictAttr.get({"iree.abi.affinity": places[index]} if index in places else {})
        for index in range(len(block.arguments))
    ]
    block.owner.attributes["arg_attrs"] = ArrayAttr.get(each)


def transfer(value: Value, to: Attribute, location: Location) -> Value:
    """A tensor of known sizes on a device, moved there if it is on another."""
    return Operation.create(
        "flow.tensor.transfer",
        results=[value.type],
        operands=[value],
        attributes={"target": to},
        loc=location,
    ).result


def count(module: Module) -> int:
    """How many devices the IR speaks of, at least one."""
    texts = [
        str(op.attributes[place])
        for op in walk(module.operation)
        for place in _PLACES
        if place in op.attributes
    ]
    ordinals = [int(number) for text in texts for number in _NAME.findall(text)]
    return max(ordinals, default=0) + 1
