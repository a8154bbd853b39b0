"""Kernels of groups of ops: pointwise ops and reductions of rows, in one loop over memory.

Note [Spaces]
All ops of a group work on one space: a shape, and the order of its axes in memory. A value has an
element at each point, or one for each row, the last axis, which it is constant along. What a kernel
reads is broadcast to the space: its strides are 0 along axes where it is constant. Axes that are
next to each other in all tensors become one.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

import turbine.kernel.lang as tkl
from turbine import dtypes
from turbine.capture.effects import FILLS
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.trace.tracer import Tile
from turbine.library import fusion_rules
from turbine.library.fusion_rules import Call

# Elements of a program, of which a reduction may have more.
_BLOCK = 1024
# A program holds whole rows; longer ones would not fit its registers.
MOST_COLUMNS = 16384
_MOST_AXES = 5
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Space:
    """The points of a group: see Note [Spaces]."""

    shape: tuple[int, ...]
    order: tuple[int, ...]  # of axes in memory, from the outermost

    @property
    def columns(self) -> int:
        """The elements of a row."""
        return self.shape[-1] if self.shape else 1


def order_of(value: Tensor) -> tuple[int, ...] | None:
    """The order of a tensor's axes in memory; None unless it is dense."""
    axes = range(value.dim())
    order = tuple(axes)
    if not value.is_contiguous():
        order = tuple(sorted(axes, key=value.stride().__getitem__, reverse=True))
    return order if value.permute(order).is_contiguous() else None


@dataclass(frozen=True)
class Operand:
    """A tensor that a kernel reads: a base, and how elements of the space lie in it."""

    base: fx.Node
    strides: tuple[int, ...]  # along the axes of the space
    offset: int


@dataclass(frozen=True)
class Region:
    """How a tensor lies in memory, along the axes of a kernel."""

    sizes: tuple[int, ...]  # 1 where it is constant
    strides: tuple[int, ...]
    offset: int = 0

    def of(self, tensor: Tensor) -> Tensor:
        """The elements of a tensor."""
        start = tensor.storage_offset() + self.offset
        return tensor.detach().as_strided(self.sizes, self.strides, start)


@dataclass(frozen=True)
class FusedKernel:
    """A kernel, with what it reads and writes."""

    kernel: Kernel
    inputs: tuple[fx.Node, ...]  # bases of what it reads, in order
    regions: tuple[Region, ...]  # of inputs
    outputs: tuple[fx.Node, ...]
    output_regions: tuple[Region, ...]

    def views(self, bases: Sequence[Tensor]) -> list[Tensor]:
        """The arguments of the kernel."""
        return [region.of(base) for region, base in zip(self.regions, bases, strict=True)]


def write_kernel(space: Space, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> FusedKernel:
    """Make the kernel of a group of nodes in order, which returns the values of `outputs`."""
    return _Writer(space, nodes, outputs).write()


class _Writer:
    def __init__(self, space: Space, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> None:
        self.space = space
        self.nodes = nodes
        self.outputs = outputs
        self.has_rows = any(node.target in fusion_rules.OF_ROWS for node in nodes)
        inside = set(nodes)
        read = [one for node in nodes for one in node.all_input_nodes if one not in inside]
        self.read = [one for one in dict.fromkeys(read) if fill_of(one) is None]
        self.operands = [operand_of(node, space) for node in self.read]

    def write(self) -> FusedKernel:
        """The kernel."""
        written = [self._strides_of_output(node) for node in self.outputs]
        sizes, every = self._merge([*(o.strides for o in self.operands), *written])
        count = len(self.operands)
        regions = [_region(sizes, strides) for strides in every]
        offsets = [operand.offset for operand in self.operands]
        inputs = [
            Region(region.sizes, region.strides, offset)
            for region, offset in zip(regions[:count], offsets, strict=True)
        ]
        kernel = self._find_kernel(sizes, regions)
        bases = tuple(operand.base for operand in self.operands)
        return FusedKernel(
            kernel, bases, tuple(inputs), tuple(self.outputs), tuple(regions[count:])
        )

    def _strides_of_output(self, node: fx.Node) -> tuple[int, ...]:
        """The strides of a new tensor along the axes of the space."""
        value = node.meta["val"]
        if tuple(value.shape) == self.space.shape:
            return tuple(value.stride())
        kept = value.stride()[: len(self.space.shape) - 1]
        return (*kept, 0)

    def _merge(self, strides: Sequence[Sequence[int]]) -> tuple[list[int], list[tuple[int, ...]]]:
        """Merge axes that are next to each other in memory, from the outermost axis."""
        order = [axis for axis in self.space.order if self.space.shape[axis] != 1]
        if self.has_rows and (not order or order[-1] != len(self.space.shape) - 1):
            order.append(len(self.space.shape) - 1)
        sizes: list[int] = []
        merged: list[list[int]] = []  # strides of all tensors, by axis
        for place, axis in enumerate(order):
            size, steps = self.space.shape[axis], [one[axis] for one in strides]
            is_row = self.has_rows and place == len(order) - 1
            if merged and not is_row and merged[-1] == [step * size for step in steps]:
                sizes[-1] *= size
                merged[-1] = steps
            else:
                sizes.append(size)
                merged.append(steps)
        if not sizes:
            sizes, merged = [1], [[0] * len(strides)]
        if self.has_rows and len(sizes) == 1:
            sizes, merged = [1, *sizes], [[0] * len(strides), *merged]
        if len(sizes) > _MOST_AXES:
            raise ValueError(f"{len(sizes)} axes that cannot be merged")
        return sizes, [tuple(of) for of in zip(*merged, strict=True)]

    def _find_kernel(self, sizes: Sequence[int], regions: Sequence[Region]) -> Kernel:
        """The kernel that was made for a group like this one, such as a layer's, or a new one."""
        key = repr((self._formula(), sizes, regions))
        if key not in _KERNELS:
            if len(_KERNELS) >= _MOST_KERNELS:
                _KERNELS.clear()
            _KERNELS[key] = self._kernel(sizes, regions)
        return _KERNELS[key]

    def _formula(self) -> list[Any]:
        """What the group computes, without the names of its nodes."""
        names = {node: f"v{place}" for place, node in enumerate([*self.read, *self.nodes])}

        def name(node: fx.Node) -> str:
            return names.get(node) or f"{fill_of(node)!r} {node.meta['val'].dtype}"

        lines: list[Any] = [str(node.meta["val"].dtype) for node in self.read]
        for node in self.nodes:
            value = node.meta["val"]
            values = value if isinstance(value, (tuple, list)) else (value,)
            args = fx.map_arg((node.args, node.kwargs), name)
            lines.append((str(node.target), args, [(v.dtype, tuple(v.shape)) for v in values]))
        return [*lines, [names[node] for node in self.outputs]]

    def _kernel(self, sizes: Sequence[int], regions: Sequence[Region]) -> Kernel:
        blocks = _blocks(sizes, is_reduced=self.has_rows)
        count = len(self.operands)
        names = [f"x{n}" for n in range(count)] + [f"y{n}" for n in range(len(self.outputs))]
        types = [node.meta["val"].dtype for node in (*self.read, *self.outputs)]
        kinds = [tkl.InputBuffer] * count + [tkl.OutputBuffer] * len(self.outputs)
        annotations = {
            name: kind[(*region.sizes, dtypes.of_torch(dtype))]
            for name, kind, region, dtype in zip(names, kinds, regions, types, strict=True)
        }
        grid = [-(-size // block) for size, block in zip(sizes, blocks, strict=True)]

        def body(**buffers: Any) -> None:
            counts = zip(grid, blocks, strict=True)
            places = [
                tkl.program_id(axis) * block if count > 1 else 0
                for axis, (count, block) in enumerate(counts)
            ]
            given = list(buffers.values())
            tiles = {
                node: _load(buffer, region, places, blocks)
                for node, buffer, region in zip(self.read, given, regions, strict=False)
            }
            self._compute(tiles)
            results = zip(self.outputs, given[count:], regions[count:], strict=True)
            for node, buffer, region in results:
                _store(buffer, region, places, blocks, tiles[node])

        body.__name__ = body.__qualname__ = _name(self.nodes)
        annotate(body, annotations)
        return Kernel(body, grid)

    def _compute(self, tiles: dict[fx.Node, Any]) -> None:
        """Add the tiles of all nodes."""
        several: dict[fx.Node, tuple[Tile, ...]] = {}
        for node in self.nodes:
            if is_item(node):
                tiles[node] = several[node.all_input_nodes[0]][int(node.args[1])]  # type: ignore[arg-type]
                continue
            if node.target in REPEATS:
                tiles[node] = tiles[node.all_input_nodes[0]]
                continue
            args, keywords = fx.map_arg((node.args, node.kwargs), lambda one: _tile(one, tiles))
            made = fusion_rules.apply(Call(node, self.space.columns), args, keywords)
            several[node], tiles[node] = made, made[0]


def annotate(body: Callable[..., None], types: Mapping[str, Any]) -> None:
    """Give the body of a kernel, which takes any buffers, its parameters."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    body.__annotations__ = {**types}
    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, annotation=type) for name, type in types.items()]
    )


_KERNELS: dict[str, Kernel] = {}
_MOST_KERNELS = 512


def _tile(node: fx.Node, tiles: Mapping[fx.Node, Any]) -> Any:
    if node in tiles:
        return tiles[node]
    number = fill_of(node)
    assert number is not None
    return tkl.full((1,), number, dtypes.of_torch(node.meta["val"].dtype))


def _blocks(sizes: Sequence[int], *, is_reduced: bool) -> list[int]:
    """The sizes of a program's block along each axis."""
    *outer, columns = sizes
    block = columns if is_reduced else min(_power_of_two(columns), _BLOCK)
    if not outer:
        return [block]
    rows = max(_BLOCK // _power_of_two(block), 1)
    return [*[1] * (len(outer) - 1), min(rows, _power_of_two(outer[-1])), block]


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _region(sizes: Sequence[int], strides: Sequence[int]) -> Region:
    constant = [not stride for stride in strides]
    kept = tuple(1 if same else size for same, size in zip(constant, sizes, strict=True))
    # The stride of an axis of size 1 is that of a contiguous tensor: no argument then.
    plain, step = [], 1
    for size in reversed(kept):
        plain.append(step)
        step *= size
    pairs = zip(constant, reversed(plain), strides, strict=True)
    return Region(kept, tuple(own if same else stride for same, own, stride in pairs))


def _load(buffer: Any, region: Region, places: Sequence[Any], blocks: Sequence[int]) -> Any:
    index = [0 if size == 1 else place for size, place in zip(region.sizes, places, strict=True)]
    return tkl.load(buffer, tuple(index), _tile_sizes(region, blocks))


def _tile_sizes(region: Region, blocks: Sequence[int]) -> tuple[int | None, ...]:
    """The block of a tensor; its outer axes are left out of the tile."""
    sizes = [1 if size == 1 else block for size, block in zip(region.sizes, blocks, strict=True)]
    return (*[None] * (len(sizes) - 2), *sizes[-2:])


def _store(
    buffer: Any, region: Region, places: Sequence[Any], blocks: Sequence[int], tile: Any
) -> None:
    index = [0 if size == 1 else place for size, place in zip(region.sizes, places, strict=True)]
    sizes = [1 if size is None else size for size in _tile_sizes(region, blocks)]
    tkl.store(buffer, tuple(index), tkl.broadcast_to(tile, sizes))


def _name(nodes: Sequence[fx.Node]) -> str:
    ops = [
        node.target._opname.strip("_")
        for node in nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target not in REPEATS
    ]
    text = "_".join(["fused", *dict.fromkeys(ops)])
    return re.sub(r"_+", "_", text)[:_LONGEST_NAME].rstrip("_")


# Nodes around a kernel

# Ops whose result has the elements of the operand, repeated: tiles are broadcast anyway.
REPEATS = {torch.ops.aten.expand.default, torch.ops.aten.alias.default}


def is_item(node: fx.Node) -> bool:
    """Whether a node takes one of several results."""
    return node.target is operator.getitem


def fill_of(node: fx.Node) -> int | float | None:
    """The number that all elements of a node are."""
    if node.target not in FILLS:
        return None
    place = 0 if node.target is torch.ops.aten.scalar_tensor.default else 1
    number = node.args[place]
    return number if isinstance(number, (bool, int, float)) else None


def operand_of(node: fx.Node, space: Space) -> Operand:
    """How a kernel reads a node: views are not computed, but read from their base."""
    value, base = node.meta["val"], base_of(node)
    missing = len(space.shape) - value.dim()
    pairs = zip(value.shape, value.stride(), strict=True)
    strides = [0 if size == 1 else stride for size, stride in pairs]
    offset = value.storage_offset() - base.meta["val"].storage_offset()
    return Operand(base, (*[0] * missing, *strides), offset)


def base_of(node: fx.Node) -> fx.Node:
    """The tensor that a view is of."""
    while (source := _source_of(node)) is not None:
        node = source
    return node


def _source_of(node: fx.Node) -> fx.Node | None:
    """What a node is a view of, or None if it is not one."""
    call = node.all_input_nodes[0] if is_item(node) else node
    if not isinstance(call.target, torch._ops.OpOverload) or not _is_view(call.target):
        return None
    source = call.all_input_nodes[0]
    value, base = node.meta["val"], source.meta["val"]
    is_plain = isinstance(base, Tensor) and value.dtype == base.dtype
    # A reshape is a view only where it can be one.
    shares = is_plain and value.untyped_storage()._cdata == base.untyped_storage()._cdata
    return source if shares else None


def _is_view(target: torch._ops.OpOverload) -> bool:
    return bool(target.is_view) or target is torch.ops.aten._unsafe_view.default


def spans(value: Any, space: Space) -> bool:
    """Whether a tensor can be broadcast to a space."""
    shape = tuple(value.shape)
    if len(shape) > len(space.shape):
        return False
    tail = space.shape[len(space.shape) - len(shape) :]
    return all(size in (1, whole) for size, whole in zip(shape, tail, strict=True))
