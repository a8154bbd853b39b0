"""Storages, which tensors that are views of each other share, and the views.

A tensor is a storage and the view ops that lead from the storage's value to it. To write to a
tensor is to give its storage a new value. Views read it when they are next used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from turbine.capture.effects import RESHAPES
from turbine.eager.trace import Operand, Value

aten = torch.ops.aten


class View(NamedTuple):
    """A view op without its operand; `which` of its results, if it gives several."""

    target: Any
    args: tuple[Any, ...]
    which: int | None = None

    def apply(self, base: Tensor) -> Tensor:
        """The view of a tensor."""
        result = self.target(base, *self.arguments())
        view: Tensor = result if self.which is None else result[self.which]
        return view

    def arguments(self) -> list[Any]:
        """The arguments of the op, with lists."""
        return [list(one) if isinstance(one, tuple) else one for one in self.args]


class Storage:
    """The memory of a tensor and of its views."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


# Views of the whole memory that depend on how it is laid out.
BY_MEMORY = {aten.as_strided.default, aten.view.dtype, aten._reshape_alias.default}


def inverse(view: View, parent: Operand, new: Operand) -> tuple[Any, list[Any]] | None:
    """The op, and its arguments, that gives the parent's values with those of a view replaced."""
    target, args = view.target, view.arguments()
    size = parent.layout.size
    if target in _SCATTERS:
        return _SCATTERS[target], [parent, new, *args]
    if target in RESHAPES:
        return aten.reshape.default, [new, list(size)]
    if target is aten.permute.default:
        axes = [axis % len(size) for axis in args[0]]
        return target, [new, [axes.index(axis) for axis in range(len(size))]]
    if target in (aten.transpose.int, aten.t.default):
        return target, [new, *args]
    return None


_SCATTERS = {
    aten.select.int: aten.select_scatter.default,
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
}
