"""Ops on lists of tensors, which optimizers call: written as ops on the elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turbine.eager.trace_tree import Op

aten = torch.ops.aten

_PREFIX = "aten::_foreach_"
# Ops with arguments besides the list. The others take each element by itself.
_ELEMENTS = {
    "add": aten.add.Tensor,
    "sub": aten.sub.Tensor,
    "mul": aten.mul.Tensor,
    "div": aten.div.Tensor,
    "addcmul": aten.addcmul.default,
    "addcdiv": aten.addcdiv.default,
    "maximum": aten.maximum.default,
    "minimum": aten.minimum.default,
}
_SCALED = ("addcmul", "addcdiv")


def elements(op: Op) -> Iterator[Op]:
    """The ops on the elements of the lists that an op takes; or the op itself."""
    schema = op.target._schema
    target = _element_of(op.target) if schema.name.startswith(_PREFIX) else None
    if target is None:
        yield op
        return
    for place, layout in enumerate(op.results):
        args = [one[place] if isinstance(one, list) else one for one in op.args]
        kwargs = dict(op.kwargs)
        if schema.name.removeprefix(_PREFIX) in _SCALED and len(args) == 4:
            kwargs["value"] = args.pop()
        yield Op(target, args, kwargs, [layout], op.where)


def _element_of(func: Any) -> Any:
    name, overload = func._schema.name.removeprefix(_PREFIX), func._overloadname
    if name == "lerp":
        return aten.lerp.Tensor if overload == "List" else aten.lerp.Scalar
    if name in _SCALED and overload == "Tensor":
        return None  # all numbers in one tensor
    if name in _ELEMENTS:
        return _ELEMENTS[name]
    packet: Any = getattr(aten, name, None)
    if packet is None or len(func._schema.arguments) > 1:
        return None
    return packet.default if "default" in packet.overloads() else None
