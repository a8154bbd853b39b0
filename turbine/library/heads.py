"""Where the heads of attention are in memory, so that kernels read them without a transpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import fx

import turbine.kernel.lang as tkl
from turbine.capture.reshapes import reshape
from turbine.capture.sizes import expression

aten, prims = torch.ops.aten, torch.ops.prims

B = tkl.sym.B  # batch
# The axes of an operand: batch, heads, rows and columns. A tensor that holds several operands has
# an axis of parts, too.
AXES = "BHSD"
PARTS = "P"
_REPEATS = "R"  # of each head, behind the axis of heads


@dataclass(frozen=True)
class Layout:
    """Where the heads of a tensor are: its axes, and which part of it they are."""

    axes: str = AXES
    part: int = 0
    repeats: int = 1  # how many heads of queries share one

    def shape(self, heads: Any, rows: Any, width: Any, parts: Any) -> tuple[Any, ...]:
        """The axes of the tensor."""
        return self._ordered({"B": B, "H": heads, "S": rows, "D": width, PARTS: parts})

    def place(self, batch: Any, head: Any, row: Any) -> tuple[Any, ...]:
        """Where a row of a head starts."""
        own = head if self.repeats == 1 else head // self.repeats
        return self._ordered({"B": batch, "H": own, "S": row, "D": 0, PARTS: self.part})

    def rows(self, count: Any, width: Any) -> tuple[Any, ...]:
        """The shape of rows of a head."""
        return self._ordered({"S": count, "D": width})

    def spread(self, rows: Any) -> Any:
        """A tile of rows, with the axes that are between them and the columns."""
        between = self.axes.index("D") - self.axes.index("S") - 1
        return rows[(slice(None), *[None] * between)] if between else rows

    def _ordered(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(values.get(axis) for axis in self.axes)


@dataclass(frozen=True)
class Source:
    """A tensor that holds an operand, which is [batch, heads, rows, columns], times a factor."""

    node: fx.Node
    sizes: Mapping[str, Any]
    # The axes of the operand in each axis of the node, from the outermost.
    groups: tuple[str, ...] = tuple(AXES)
    part: int = 0
    repeats: int = 1
    factor: float = 1.0

    @property
    def layout(self) -> Layout:
        """Its layout, with each axis apart."""
        return Layout("".join(self.groups), self.part, self.repeats)

    @property
    def is_readable(self) -> bool:
        """Whether kernels can read it in place: columns are neighbours."""
        axes = self.layout.axes
        dynamic = [axis for axis in axes if not isinstance(self.sizes[axis], int)]
        is_split = any(len(group) != 1 for group in self.groups)
        is_known = len(dynamic) <= 1 or not is_split
        return _REPEATS not in axes and axes.endswith("D") and is_known

    def write(self, beside: fx.Node) -> fx.Node:
        """The node with the axes of its layout."""
        if all(len(group) == 1 for group in self.groups):
            return self.node
        sizes = [self.sizes[axis] for axis in self.layout.axes]
        shape = [size if isinstance(size, int) else -1 for size in sizes]
        return reshape(self.node, shape, beside)


def sources_of(operand: fx.Node) -> Iterator[Source]:
    """Tensors that kernels can read an operand from, the operand itself first."""
    sizes = dict(zip(AXES, operand.meta["val"].shape, strict=True))
    source: Source | None = Source(operand, sizes)
    while source is not None:
        if source.is_readable:
            yield source
        source = _before(source)


def _before(source: Source) -> Source | None:
    """The tensor that a view, a copy or a factor is made from."""
    node: Any = source.node
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    before, args, groups = node.args[0], node.args, [*source.groups]
    shape = before.meta["val"].shape
    match node.target:
        case aten.clone.default:
            pass
        case aten.mul.Tensor if isinstance(args[1], float | int):
            return replace(source, node=before, factor=source.factor * args[1])
        case aten.permute.default:
            placed = dict(zip((axis % len(groups) for axis in args[1]), groups, strict=True))
            groups = [placed[axis] for axis in range(len(groups))]
        case aten.unsqueeze.default:
            if groups.pop(args[1] % len(groups)):
                return None
        case aten.squeeze.dim | aten.squeeze.dims | prims.squeeze.default:
            axes = [args[1]] if isinstance(args[1], int) else args[1]
            for axis in sorted(axis % len(shape) for axis in axes):
                groups.insert(axis, "")
        case aten.select.int:
            return _before_select(source, before, args[1] % len(shape), args[2])
        case aten.expand.default:
            return _before_expand(source, before)
        case aten.view.default:
            return _regroup(source, before)
        case _:
            return None
    return replace(source, node=before, groups=tuple(groups))


def _before_select(source: Source, before: fx.Node, axis: int, index: int) -> Source | None:
    size = before.meta["val"].shape[axis]
    if PARTS in source.sizes or not isinstance(size, int):
        return None
    groups = (*source.groups[:axis], PARTS, *source.groups[axis:])
    sizes = {**source.sizes, PARTS: size}
    return replace(source, node=before, groups=groups, sizes=sizes, part=index % size)


def _before_expand(source: Source, before: fx.Node) -> Source | None:
    """Of repeated heads there is one."""
    groups, sizes, repeats = [*source.groups], {**source.sizes}, source.repeats
    shapes = source.node.meta["val"].shape, before.meta["val"].shape
    if len(shapes[0]) != len(shapes[1]):
        return None
    for axis, (size, own) in enumerate(zip(*shapes, strict=True)):
        if expression(size) == expression(own):
            continue
        if groups[axis] == _REPEATS:
            groups[axis], repeats = "", repeats * sizes.pop(_REPEATS)
        elif groups[axis] == "H" and isinstance(size, int):
            repeats, sizes["H"] = repeats * size, 1
        else:
            return None
    return replace(source, node=before, groups=tuple(groups), sizes=sizes, repeats=repeats)


def _regroup(source: Source, before: fx.Node) -> Source | None:
    """The source before a view: axes of the operand are merged or split."""
    left, sizes = [*"".join(source.groups)], {**source.sizes}
    groups = []
    for size in before.meta["val"].shape:
        group = ""
        while expression(prod(sizes[axis] for axis in group)) != expression(size):
            if not left:
                return None
            if _is_part_of_heads(left[0], group, size, sizes):
                sizes |= {"H": size, _REPEATS: sizes["H"] // size}
                left.insert(1, _REPEATS)
            group += left.pop(0)
        if not group and left and expression(sizes[left[0]]) == 1:
            group = left.pop(0)
        groups.append(group)
    return None if left else replace(source, node=before, groups=tuple(groups), sizes=sizes)


def _is_part_of_heads(axis: str, group: str, size: Any, sizes: Mapping[str, Any]) -> bool:
    """Whether heads are split into those that are stored, and how often each is repeated."""
    if axis != "H" or group or _REPEATS in sizes or not isinstance(size, int):
        return False
    heads = sizes["H"]
    return isinstance(heads, int) and 1 < size < heads and heads % size == 0
