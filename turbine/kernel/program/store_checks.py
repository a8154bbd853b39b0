"""Find, before a kernel runs, programs that surely store to one element.

Only what is certain is reported: blocks without masks, stored whatever was computed. Two programs
next to each other are compared by the elements they write, in numbers; so nothing is reported for
a grid that has one program, or for blocks whose overlap lies outside the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from turbine import errors
from turbine.algebra import Symbol
from turbine.kernel.lang.control_flow import Body, for_op
from turbine.kernel.lang.memory import store
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.trace.validity import Bound


@dataclass(frozen=True)
class Written:
    """The elements that a store of one program writes: first and last + 1 along each axis."""

    buffer: str
    node: fx.Node
    box: tuple[tuple[int, int], ...]

    def meets(self, other: Written) -> bool:
        """Whether an element is written by both."""
        pairs = zip(self.box, other.box, strict=True)
        return all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in pairs)


def check_stores(program: KernelProgram, sizes: Mapping[Symbol, int]) -> None:
    """Raise if two programs of a kernel, with these sizes, store to the same element."""
    counts = [count.evaluate(sizes) for count in program.grid]
    if not all(counts):
        return
    first = (0,) * len(counts)
    by_first = list(stored_blocks(program, sizes, first))
    for axis, count in enumerate(counts):
        if count < 2:
            continue
        second = tuple(int(place == axis) for place in range(len(counts)))
        for other in stored_blocks(program, sizes, second):
            for own in by_first:
                if own.buffer == other.buffer and own.meets(other):
                    raise _race(program, own, other, axis)


def stored_blocks(
    program: KernelProgram, sizes: Mapping[Symbol, int], ids: Sequence[int]
) -> Iterator[Written]:
    """The blocks that one program certainly stores to shared buffers."""
    known = dict(sizes)
    known.update({Symbol(f"program_id({a})", "program", a): i for a, i in enumerate(ids)})
    shared = {p.name for p in program.of_usage("output", "inout")}
    for block in _stores_of(program.graph, known):
        if block.buffer in shared:
            yield block


def _stores_of(graph: fx.Graph, known: dict[Symbol, int]) -> Iterator[Written]:
    for node in graph.nodes:
        if node.target is store and not node.kwargs["masks"]:
            block = _block(node, known)
            if block is not None:
                yield block
        elif node.target is for_op:
            start, stop, step, _, body, _ = node.args
            assert isinstance(body, Body)
            assert body.counter is not None
            if (start.symbols | stop.symbols) <= known.keys():
                turns = range(start.evaluate(known), stop.evaluate(known), step)
                # If a loop runs at all, its first iteration does.
                if turns:
                    yield from _stores_of(body.graph, {**known, body.counter: turns[0]})


def _block(node: fx.Node, known: Mapping[Symbol, int]) -> Written | None:
    """The elements that a store writes; None if they are unknown, or there are none."""
    buffer, index, value = node.args
    assert isinstance(buffer, fx.Node)
    assert isinstance(value, fx.Node)
    bounds: Sequence[Bound] = node.kwargs["bounds"]  # type: ignore[assignment]
    shape = value.meta["type"].shape
    exprs = [*index, *shape, *(e for b in bounds for e in (b.offset, b.limit))]  # type: ignore[misc]
    if not all(expr.symbols <= known.keys() for expr in exprs):
        return None
    lanes = [(0, size.evaluate(known)) for size in shape]
    for bound in bounds:
        offset, limit = bound.offset.evaluate(known), bound.limit.evaluate(known)
        if bound.axis is None:
            if not 0 <= offset < limit:
                return None
            continue
        begin, end = lanes[bound.axis]
        lanes[bound.axis] = max(begin, -offset), min(end, limit - offset)
    starts = [expr.evaluate(known) for expr in index]  # type: ignore[union-attr]
    box = tuple((s + begin, s + end) for s, (begin, end) in zip(starts, lanes, strict=True))
    return Written(buffer.meta["buffer"], node, box)


def _race(program: KernelProgram, own: Written, other: Written, axis: int) -> errors.KernelError:
    index = ", ".join(map(str, own.node.args[1]))  # type: ignore[arg-type]
    shape = own.node.args[2].meta["type"]  # type: ignore[union-attr]
    also = "" if own.node is other.node else f", as does {other.node.meta.get('line')}"
    symbol = f"program_id({axis})"
    return errors.KernelError(
        f"{program.name}: programs with {symbol} 0 and 1 store to one element of {own.buffer}: "
        f"a tile {shape} goes to ({index}){also}",
        where=own.node.meta.get("line"),
        hint=f"let what is stored where depend on {symbol}, a whole block apart, or use "
        "tkl.atomic_add",
    )
