"""A traced kernel: the graph of its body, its parameters and its grid."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from turbine import errors
from turbine.algebra import ONE, ZERO, Expr, Interval, Symbol
from turbine.dtypes import Dtype
from turbine.kernel.lang.control_flow import Body, blocks
from turbine.kernel.lang.debugging import breakpoint_op, print_op
from turbine.kernel.program.data_dependence import drop_other_checks
from turbine.kernel.program.signature import KernelSignature, Parameter
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.tracer import Buffer, Region, Tile, Trace, enter_trace, expr_of
from turbine.kernel.trace.types import BufferType, DtypeSymbol, TileType
from turbine.kernel.trace.validity import Bound


@dataclass(frozen=True)
class KernelProgram:
    """A kernel traced for the arguments that are passed and their dtypes; sizes are symbols."""

    name: str
    parameters: tuple[Parameter, ...]
    graph: fx.Graph
    grid: tuple[Expr, ...]
    ranges: Mapping[Symbol, Interval]
    place: str | None

    @cached_property
    def size_symbols(self) -> frozenset[Symbol]:
        """The sizes that its code needs: of buffers, of the grid and in the graph."""
        shapes = [p.type.shape for p in self.parameters if isinstance(p.type, BufferType)]
        found = {*_symbols((*shapes, self.grid)), *_symbols_of(self.graph)}
        return frozenset(symbol for symbol in found if symbol.kind == "size")

    @cached_property
    def digest(self) -> str:
        """A key of what the kernel computes: equal where its source is, also in other processes."""
        parts = [self.name, *map(str, self.parameters), *map(str, self.grid)]
        return hashlib.sha256("\n".join([*parts, *_texts(self.graph)]).encode()).hexdigest()[:16]

    @cached_property
    def is_printing(self) -> bool:
        """Whether it prints."""
        return any(node.target is print_op for node in nodes_of(self.graph))

    def of_usage(self, *usages: str) -> list[Parameter]:
        """The buffers with one of these usages."""
        return [
            p for p in self.parameters if isinstance(p.type, BufferType) and p.type.usage in usages
        ]


def nodes_of(graph: fx.Graph) -> Iterator[fx.Node]:
    """Every node, including those of loops and branches."""
    for node in graph.nodes:
        yield node
        for argument in node.args:
            if isinstance(argument, Body):
                yield from nodes_of(argument.graph)


def _texts(graph: fx.Graph) -> Iterator[str]:
    """A line for each node, with the numbers of its operands."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return f"%{numbers[value]}"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(text, value))})"
        if isinstance(value, Body):
            return "{" + "\n".join([str(value.counter), *_texts(value.graph)]) + "}"
        return value.name if isinstance(value, (Dtype, Op)) else str(value)

    for node in graph.nodes:
        keywords = [f"{name}={text(value)}" for name, value in node.kwargs.items()]
        operands = [*map(text, node.args), *keywords]
        yield f"{text(node.target)} {', '.join(operands)} {node.meta.get('type', '')}"


def _symbols_of(graph: fx.Graph) -> Iterator[Symbol]:
    for node in graph.nodes:
        # A breakpoint lists every variable, also sizes that nothing is computed from.
        if node.target is not breakpoint_op:
            yield from _symbols((node.args, tuple(node.kwargs.values()), node.meta.get("type")))


def _symbols(value: Any) -> Iterator[Symbol]:
    """The symbols in an argument of a node."""
    if isinstance(value, Expr):
        yield from value.symbols
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _symbols(part)
    elif isinstance(value, Bound):
        yield from _symbols((value.offset, value.limit))
    elif isinstance(value, TileType):
        yield from _symbols(value.shape)
    elif isinstance(value, Body):
        yield from _symbols_of(value.graph)


def trace(
    signature: KernelSignature,
    present: Sequence[Parameter],
    grid: Sequence[Any],
    function: Callable[..., Any],
) -> KernelProgram:
    """Trace a kernel: run its function once with placeholders."""
    counts = tuple(blocks(expr_of(size)) for size in grid)
    program_ids = [Symbol(f"program_id({axis})", "program", axis) for axis in range(len(counts))]
    ranges = {
        symbol: Interval(ZERO, count - ONE)
        for symbol, count in zip(program_ids, counts, strict=True)
    }
    known = _named_dtypes(signature, present)
    tracer = Trace(signature.kernel, [Region(fx.Graph(), None)], counts, ranges, dtypes=known)
    graph = tracer.region.graph
    given = {parameter.name: _stand_in(graph, parameter) for parameter in present}
    with enter_trace(tracer):
        result = function(**{p.name: given.get(p.name) for p in signature.parameters})
    if result is not None:
        raise errors.KernelError(
            f"kernel {signature.kernel} returns a value",
            where=signature.place,
            hint="write results to an OutputBuffer by tkl.store",
        )
    graph.output(())
    drop_other_checks(graph)
    _check_outputs(signature, present, tracer)
    return KernelProgram(
        signature.kernel, tuple(present), graph, counts, tracer.ranges, signature.place
    )


def _named_dtypes(signature: KernelSignature, present: Sequence[Parameter]) -> dict[str, Dtype]:
    """The dtypes of the dtype symbols in the kernel's types."""
    actual = {parameter.name: parameter.type.dtype for parameter in present}
    return {
        p.type.dtype.name: dtype
        for p in signature.parameters
        if isinstance(p.type.dtype, DtypeSymbol) and isinstance(dtype := actual.get(p.name), Dtype)
    }


def _stand_in(graph: fx.Graph, parameter: Parameter) -> Buffer | Tile:
    node = graph.placeholder(parameter.name)
    if isinstance(parameter.type, BufferType):
        return Buffer(parameter.name, node, parameter.type)
    assert isinstance(parameter.type.dtype, Dtype)
    return Tile(node, TileType((), parameter.type.dtype))


def _check_outputs(signature: KernelSignature, present: Sequence[Parameter], trace: Trace) -> None:
    for parameter in present:
        type = parameter.type
        if not isinstance(type, BufferType) or type.usage != "output" or type.fill is not None:
            continue
        if parameter.name not in trace.written:
            raise errors.KernelError(
                f"kernel {signature.kernel} never writes to its output {parameter.name}",
                where=signature.place,
                hint=f"tkl.store({parameter.name}, ...), or leave the argument out",
            )
