"""Sums of scattered elements along rows or columns, and of scattered rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit, value_of
from turbine.capture.program import Region
from turbine.capture.sizes import count_elements
from turbine.library.nodes import have_equal_sizes
from turbine.target import Target

aten = torch.ops.aten

# Tensors with the axes (A, N, C) are written along N, at K places.
A, N, C, K, BN, BC = tkl.symbols("A N C K BN BC")
T, i64 = tkl.types.T, tkl.i64


@tk.gen.kernel(A)
def scatter_add_in_rows(
    x: tkl.InputBuffer[A, N, T],
    index: tkl.InputBuffer[A, K, i64],
    source: tkl.InputBuffer[A, K, T],
    y: tkl.OutputBuffer[A, N, T],
) -> None:
    """Add each element of a row at its index."""
    row = tkl.program_id(0)
    tkl.store(y, (row, 0), tkl.load(x, (row, 0), (1, N)))

    @tkl.for_loop(0, K)
    def elements(k: Any) -> None:
        place = row, tkl.load(index, (row, k), (None, None))
        _add(y, place, tkl.load(source, (row, k)))


@tk.gen.kernel(A, C // BC, blocks={BN: 16, BC: 64})
def scatter_add_in_columns(
    x: tkl.InputBuffer[A, N, C, T],
    index: tkl.InputBuffer[A, K, C, i64],
    source: tkl.InputBuffer[A, K, C, T],
    y: tkl.OutputBuffer[A, N, C, T],
) -> None:
    """Add each element of a column at its index."""
    a, first = tkl.program_id(0), tkl.program_id(1) * BC
    columns = first + tkl.arange(BC)

    @tkl.for_loop(0, N // BN)
    def blocks(n: Any) -> None:
        tkl.store(y, (a, n * BN, first), tkl.load(x, (a, n * BN, first), (1, BN, BC)))

    @tkl.for_loop(0, K)
    def rows(k: Any) -> None:
        start = a, k, first
        place = a, tkl.load(index, start, (None, None, BC)), columns
        _add(y, place, tkl.load(source, start, (None, None, BC)))


def _add(y: Any, place: Any, values: Any) -> None:
    # The load has checked the index.
    tkl.store(y, place, tkl.load(y, place) + values, check=False)


R, D, P = tkl.symbols("R D P")


@tk.gen.kernel(P, blocks={P: 4})
def add_rows(
    x: tkl.InputBuffer[R, D, T],
    index: tkl.InputBuffer[K, i64],
    source: tkl.InputBuffer[K, D, T],
    y: tkl.OutputBuffer[R, D, T],
) -> None:
    """Add rows at indices. Each program has a range of rows, and looks for them in the index."""
    program, size = tkl.program_id(0), tkl.cdiv(R, P)
    first = tkl.minimum(program * size, R)
    end = tkl.minimum(first + size, R)

    @tkl.for_loop(first, end)
    def copies(row: Any) -> None:
        tkl.store(y, (row, 0), tkl.load(x, (row, 0), (1, D)))

    @tkl.for_loop(0, K)
    def additions(k: Any) -> None:
        given = tkl.load(index, (k,))
        row = tkl.where(given < 0, given + R, given)
        # Those that are out of range belong to the first or the last program, which fails.
        is_own = ((row >= first) | (program == 0)) & ((row < end) | (program == P - 1))

        @tkl.for_loop(0, tkl.where(is_own, 1, 0))
        def once(_: Any) -> None:
            total = tkl.load(y, (row, 0), (1, D)) + tkl.load(source, (k, 0), (1, D))
            tkl.store(y, (row, 0), total, check=False)


# Wide rows take longer than to look at all indices in more programs.
_LEAST_WIDE, _PROGRAMS_OF_WIDE = 256, 16


@dataclass(frozen=True)
class ScatterAdd:
    """A match: a sum of many elements along an axis; the other axes are static and equal."""

    node: fx.Node
    axis: int

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU: IREE's code runs on one thread."""
        return target.kind == "cpu"

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel of rows or of columns; return the result."""
        graph, node = self.node.graph, self.node
        x, _, index, source = node.args
        ahead, behind = self._sizes_around()
        shape = [math.prod(ahead), -1, *([math.prod(behind)] if behind else [])]
        layout = torch.contiguous_format
        operands = [
            emit(graph, aten.clone.default, one, memory_format=layout, beside=node)
            for one in (x, index, source)
        ]
        views = [emit(graph, aten.view.default, one, shape, beside=node) for one in operands]
        kernel = scatter_add_in_columns if behind else scatter_add_in_rows
        y = emit(graph, kernel.op.op, *views, beside=node)
        return emit(graph, aten.view.default, y, [*ahead, -1, *behind], beside=node)

    def _sizes_around(self) -> tuple[list[int], list[int]]:
        sizes = [*self.node.meta["val"].shape]
        return sizes[: self.axis], sizes[self.axis + 1 :]

    @property
    def is_supported(self) -> bool:
        """Whether a kernel takes the sizes and the dtype, and pays."""
        x, index, source = (value_of(one) for one in self.node.all_input_nodes)
        ahead, behind = self._sizes_around()
        around = [*index.shape]
        del around[self.axis]
        return (
            x.dtype in _DTYPES
            and all(isinstance(size, int) for size in (*ahead, *behind))
            and have_equal_sizes(around, [*ahead, *behind])
            and index.dtype == torch.int64
            and have_equal_sizes(index.shape, source.shape)
            and (not behind or math.prod(behind) >= _LEAST_COLUMNS)
            # The kernels copy x, and a call of one takes longer than a few elements.
            and count_elements(index) >= max(count_elements(x) // 4, _LEAST_ELEMENTS)
        )


@dataclass(frozen=True)
class AddRows:
    """A match: rows added at the indices of the first axis; the other axes are static."""

    node: fx.Node
    x: fx.Node
    index: fx.Node
    source: fx.Node

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU: IREE's code runs on one thread."""
        return target.kind == "cpu"

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        graph, node = self.node.graph, self.node
        sizes = [*node.meta["val"].shape[1:]]
        width = math.prod(sizes)
        x, index, source = (
            emit(graph, aten.view.default, one, shape, beside=node)
            for one, shape in (
                (self.x, [-1, width]),
                (self.index, [-1]),
                (self.source, [-1, width]),
            )
        )
        is_wide = width >= _LEAST_WIDE
        kernel = add_rows.using(P=_PROGRAMS_OF_WIDE) if is_wide else add_rows
        y = emit(graph, kernel.op.op, x, index, source, beside=node)
        return emit(graph, aten.view.default, y, [-1, *sizes], beside=node)

    @property
    def is_supported(self) -> bool:
        """Whether the kernel takes the sizes and the dtype, and pays."""
        x, index, source = (value_of(one) for one in (self.x, self.index, self.source))
        sizes = x.shape[1:]
        return (
            x.dtype in _DTYPES
            and index.dtype == torch.int64
            and all(isinstance(size, int) for size in sizes)
            and math.prod(sizes) >= _LEAST_COLUMNS
            and have_equal_sizes(source.shape, [*index.shape, *sizes])
            and count_elements(source) >= max(count_elements(x) // 64, _LEAST_ADDED)
        )


_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)
_LEAST_COLUMNS, _LEAST_ELEMENTS = 8, 1024
_LEAST_ADDED = 1 << 14


def find(region: Region) -> Iterator[ScatterAdd]:
    """Find sums of scattered elements that a kernel supports."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten.scatter_add.default):
        if len(node.all_input_nodes) == 3:
            axis = node.args[1] % node.meta["val"].dim()
            found = ScatterAdd(node, axis)
            if found.is_supported:
                yield found


def find_rows(region: Region) -> Iterator[AddRows]:
    """Find sums of scattered rows that a kernel supports."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten.index_put.default):
        x, indices, source, *accumulate = node.args
        if accumulate == [True] and len(indices) == 1 and isinstance(indices[0], fx.Node):
            found = AddRows(node, x, indices[0], source)
            if found.is_supported:
                yield found
