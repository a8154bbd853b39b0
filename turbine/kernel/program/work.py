"""Estimate the work of a call: operations on elements, and bytes read and written."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import fx

from turbine.algebra import Expr, Interval, Symbol
from turbine.dtypes import Dtype
from turbine.kernel.lang import (
    arithmetic,
    casting,
    control_flow,
    functions,
    products,
    reductions,
    scans,
)
from turbine.kernel.lang.control_flow import Body
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.types import BufferType, TileType
from turbine.kernel.trace.validity import Bound


@dataclass(frozen=True)
class Work:
    """The work of a call: operations on elements, and bytes read and written."""

    operations: float
    bytes: int

    @property
    def load(self) -> float:
        """About how many operations of a matmul take as long."""
        return self.operations + self.bytes


def work_of(program: KernelProgram, sizes: Mapping[Symbol, int]) -> Work:
    """Estimate the work of a call: every op counts one for each element."""
    programs = prod(count.evaluate(sizes) for count in program.grid)
    counting = _Counting(dict(sizes), program.ranges)
    for symbol, within in program.ranges.items():
        if symbol.kind == "program":
            counting.fix(symbol, within)
    return Work(programs * counting.operations(program.graph), bytes_of(program, sizes))


def bytes_of(program: KernelProgram, sizes: Mapping[Symbol, int]) -> int:
    """The least bytes read and written: each tensor once, in-out buffers twice."""
    total = 0
    for parameter in program.of_usage("input", "output", "inout"):
        assert isinstance(parameter.type, BufferType)
        assert isinstance(parameter.type.dtype, Dtype)
        elements = prod(size.evaluate(sizes) for size in parameter.type.shape)
        times = 2 if parameter.type.usage == "inout" else 1
        total += times * elements * parameter.type.dtype.itemsize
    return total


@dataclass
class _Counting:
    """Counts for the middle program of the grid and the middle iteration of each loop."""

    known: dict[Symbol, int]
    ranges: Mapping[Symbol, Interval]
    shares: dict[tuple[Any, ...], float] = field(default_factory=dict)  # what `inside` found

    def fix(self, counter: Symbol, within: Interval) -> int:
        """Set a counter to the middle of its range; return the length of the range."""
        first, last = (e.substitute(self.known).number or 0 for e in (within.first, within.last))
        self.known[counter] = (first + last) // 2
        return max(last - first + 1, 0)

    def operations(self, graph: fx.Graph) -> float:
        return sum(self.of_node(node) for node in graph.nodes if node.op == "call_function")

    def of_node(self, node: fx.Node) -> float:
        op = node.target
        assert isinstance(op, Op)
        if op is control_flow.for_op:
            return self.of_loop(node)
        args: tuple[Any, ...] = node.args
        inner = [self.operations(part.graph) for part in args if isinstance(part, Body)]
        return sum(inner, self.of_elements(node, op))

    def of_loop(self, node: fx.Node) -> float:
        args: tuple[Any, ...] = node.args
        start, stop, step, _, body, _ = args
        assert body.counter is not None
        ends = (start, stop - 1) if step > 0 else (stop + 1, start)
        count = self.fix(body.counter, Interval(*ends))
        inner: float = self.operations(body.graph)
        return inner * count / abs(int(step))

    def of_elements(self, node: fx.Node, op: Op) -> float:
        if op is products.dot:
            left = node.all_input_nodes[0]
            bounds: Any = node.kwargs["bounds"]
            shape = left.meta["type"].shape
            depth: float = shape[-1].evaluate(self.known) * self.share(bounds[0], shape)
            return 2 * self.lanes(node) * depth
        if op in OVER_AN_AXIS:
            return self.lanes(node.all_input_nodes[0])
        if op is arithmetic.fma:
            return 2 * self.lanes(node)
        return self.lanes(node) if op.kind == "pointwise" or op in ELEMENTWISE else 0.0

    def lanes(self, node: fx.Node) -> float:
        """The mean number of valid lanes of a tile."""
        type = node.meta["type"]
        assert isinstance(type, TileType)
        valid = node.meta.get("valid")
        elements = prod(size.evaluate(self.known) for size in type.shape)
        return elements * (1.0 if valid is None else self.share(valid.bounds, type.shape))

    def share(self, bounds: tuple[Bound, ...], shape: tuple[Expr, ...]) -> float:
        along = {bound.axis: bound for bound in bounds if bound.axis is not None}
        return prod(self.inside(bound, shape[axis]) for axis, bound in along.items())

    def inside(self, bound: Bound, size: Expr) -> float:
        """The mean share of lanes that satisfy a bound, over the counters of its offset."""
        symbols = sorted(bound.offset.symbols | bound.limit.symbols, key=str)
        lanes = size.evaluate(self.known)
        key = bound, lanes, tuple(self.known.get(symbol) for symbol in symbols)
        if key not in self.shares:
            self.shares[key] = self._mean_share(bound, lanes)
        return self.shares[key]

    def _mean_share(self, bound: Bound, lanes: int) -> float:
        shares = []
        for known in self._each_count(bound):
            offset, limit = bound.offset.evaluate(known), bound.limit.evaluate(known)
            shares.append(max(min(limit - offset, lanes) - max(-offset, 0), 0) / max(lanes, 1))
        return statistics.fmean(shares) if shares else 1.0

    def _each_count(self, bound: Bound) -> Iterator[dict[Symbol, int]]:
        if not bound.offset.symbols | bound.limit.symbols <= self.known.keys():
            return
        counters = [s for s in bound.offset.symbols if s in self.ranges]
        if not counters:
            yield self.known
        for counter in counters[:1]:
            within = self.ranges[counter]
            ends = [e.substitute(self.known).number for e in (within.first, within.last)]
            if ends[0] is not None and ends[1] is not None and ends[1] - ends[0] < _MOST_COUNTED:
                for value in range(ends[0], ends[1] + 1):
                    yield {**self.known, counter: value}


_MOST_COUNTED = 4096
ELEMENTWISE = frozenset(
    (
        *(arithmetic.maximum, arithmetic.minimum, arithmetic.clamp, arithmetic.where),
        *(arithmetic.logical_and, arithmetic.logical_or, arithmetic.logical_not, arithmetic.pow),
        *(functions.floor, functions.ceil, functions.round, functions.trunc, casting.to_dtype),
    )
)
OVER_AN_AXIS = frozenset(
    (
        reductions.sum,
        reductions.prod,
        reductions.max,
        reductions.min,
        reductions.any,
        reductions.all,
        reductions.argmax,
        reductions.argmin,
        scans.cumsum,
        scans.cumprod,
        scans.cummax,
        scans.cummin,
    )
)
