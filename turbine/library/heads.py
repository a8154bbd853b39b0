"""Where the heads of attention are in memory, so that kernels read them without a transpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.library.nodes import have_equal_sizes

aten = torch.ops.aten

B = tkl.sym.B  # batch


@dataclass(frozen=True)
class Layout:
    """Where the heads of a tensor are: [B, H, S, D], or a part of [B, S, parts, H, D]."""

    part: int | None = None

    def shape(self, heads: Any, rows: Any, width: Any, parts: Any) -> tuple[Any, ...]:
        """The axes of the tensor."""
        return (B, heads, rows, width) if self.part is None else (B, rows, parts, heads, width)

    def place(self, batch: Any, head: Any, row: Any) -> tuple[Any, ...]:
        """Where a row of a head starts."""
        return (batch, head, row, 0) if self.part is None else (batch, row, self.part, head, 0)

    def rows(self, count: Any, width: Any) -> tuple[Any, ...]:
        """The shape of rows of a head."""
        return (None, None, count, width) if self.part is None else (None, count, None, None, width)


@dataclass(frozen=True)
class Source:
    """A tensor that holds an operand, which is [batch, heads, rows, width], times a factor."""

    node: fx.Node
    # The axes of the node that are those of the operand; of another axis there is one index.
    axes: tuple[int, ...] = (0, 1, 2, 3)
    index: tuple[int, int] | None = None  # axis and place
    factor: float = 1.0

    @property
    def layout(self) -> Layout:
        """Its layout, if a kernel can read it."""
        if self.axes == (0, 1, 2, 3):
            return Layout()
        return Layout(0 if self.index is None else self.index[1])

    @property
    def is_readable(self) -> bool:
        """Whether kernels can read it in place."""
        if self.index is None:
            return self.axes in ((0, 1, 2, 3), (0, 2, 1, 3))
        return self.axes == (0, 3, 1, 4) and self.index[0] == 2

    def write(self, beside: fx.Node) -> fx.Node:
        """The node with the axes of its layout."""
        if self.layout.part is None or self.index is not None:
            return self.node
        return emit(beside.graph, aten.unsqueeze.default, self.node, 2, beside=beside)


def sources_of(operand: fx.Node) -> Iterator[Source]:
    """Tensors that kernels can read an operand from, the operand itself first."""
    source: Source | None = Source(operand)
    while source is not None:
        if source.is_readable:
            yield source
        source = _before(source)


def _before(source: Source) -> Source | None:
    """The tensor that a view, a copy or a factor is made from."""
    node: Any = source.node
    target, args = node.target, node.args
    if target is aten.clone.default or (target is aten.expand.default and _keeps_shape(node)):
        return replace(source, node=args[0])
    if target is aten.mul.Tensor and isinstance(args[1], float | int):
        return replace(source, node=args[0], factor=source.factor * args[1])
    if target is aten.permute.default:
        order = args[1]
        index = source.index and (order[source.index[0]], source.index[1])
        axes = tuple(order[axis] for axis in source.axes)
        return replace(source, node=args[0], axes=axes, index=index)
    if target is aten.select.int and source.index is None:
        shape = args[0].meta["val"].shape
        axis = args[1] % len(shape)
        if not isinstance(shape[axis], int):
            return None
        axes = tuple(one + (one >= axis) for one in source.axes)
        return replace(source, node=args[0], axes=axes, index=(axis, args[2] % shape[axis]))
    return None


def _keeps_shape(node: Any) -> bool:
    return have_equal_sizes(node.args[0].meta["val"].shape, node.meta["val"].shape)
