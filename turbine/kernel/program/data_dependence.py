"""Find the values of a kernel that depend on loaded data: a graph in, nodes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from turbine.algebra import Expr, Symbol
from turbine.kernel.lang import atomics, control_flow, memory, scans
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.lang.index_checks import check_index
from turbine.kernel.trace.op import Op, arguments

_SOURCES = (memory.load, memory.gather, atomics.atomic_block, atomics.atomic_scatter)


def drop_other_checks(graph: fx.Graph) -> None:
    """Remove index checks that do not depend on loaded data, unless the user requested them."""
    loaded = Loaded()
    loaded.visit(graph)
    for node in list(_nodes(graph)):
        if node.target is check_index:
            index, *_, always = arguments(node)
            if not always and index not in loaded.values:
                node.graph.erase_node(node)


def _nodes(graph: fx.Graph) -> Iterator[fx.Node]:
    for node in graph.nodes:
        yield node
        for argument in node.args:
            if isinstance(argument, Body):
                yield from _nodes(argument.graph)


@dataclass(frozen=True)
class Regions:
    """The regions of a loop, a branch or a scan, and their arguments."""

    carried: Sequence[fx.Node]  # the first values of their first placeholders
    bodies: Sequence[tuple[Body, Sequence[fx.Node]]]  # with what each uses from around it
    repeats: bool = True  # whether what the last one yields is carried on


REGIONS: dict[Any, Callable[..., Regions]] = {
    control_flow.for_op: lambda start, stop, step, init, body, around: Regions(
        init, [(body, around)]
    ),
    control_flow.while_op: lambda asked, of_asked, init, body, around: Regions(
        init, [(asked, of_asked), (body, around)]
    ),
    control_flow.cond_op: lambda condition, passed, one, of_one, other, of_other: Regions(
        passed, [(one, of_one), (other, of_other)], repeats=False
    ),
    scans.scan_op: lambda tiles, axis, reverse, body, around: Regions(
        [*tiles, *tiles], [(body, around)]
    ),
    scans.reduce_op: lambda tiles, axis, starts, body, around: Regions(
        [*tiles, *tiles], [(body, around)]
    ),
}


@dataclass
class Loaded:
    """Nodes, results of loops as (node, index), and symbols that depend on loaded data."""

    values: set[Any] = field(default_factory=set)

    def visit(self, graph: fx.Graph) -> None:
        """Propagate dependence through a region."""
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            assert isinstance(node.target, Op)
            if node.target in REGIONS:
                self._visit_regions(node, REGIONS[node.target](*node.args))
            elif node.target in _SOURCES or self._is_computed(node):
                self.values.add(node)
                if node.target is memory.to_index:
                    self.values.add(arguments(node)[1])

    def _is_computed(self, node: fx.Node) -> bool:
        """Whether an operand of a node, or a size among its arguments, is loaded."""
        if node.target is control_flow.result and arguments(node) in self.values:
            return True
        inputs = not self.values.isdisjoint(node.all_input_nodes)
        return inputs or any(map(self._has_loaded, node.args))

    def _has_loaded(self, argument: Any) -> bool:
        if isinstance(argument, (tuple, list)):
            return any(map(self._has_loaded, argument))
        return isinstance(argument, Expr) and not self.values.isdisjoint(argument.symbols)

    def _visit_regions(self, node: fx.Node, regions: Regions) -> None:
        """Propagate dependence through a loop's carried values, to a fixed point."""
        if node.target is control_flow.for_op and any(map(self._has_loaded, node.args[:2])):
            self.values.add(_counter(regions))
        last = output_of(regions.bodies[-1][0].graph)
        before = -1
        while before != len(self.values):
            before = len(self.values)
            flowing = [one in self.values for one in regions.carried]
            if regions.repeats:
                flowing[: len(last)] = [
                    known or out in self.values for known, out in zip(flowing, last, strict=False)
                ]
            for body, around in regions.bodies:
                self._enter(body, [*flowing, *(one in self.values for one in around)])
        for body, _ in regions.bodies if not regions.repeats else regions.bodies[-1:]:
            outputs = enumerate(output_of(body.graph))
            self.values |= {(node, place) for place, out in outputs if out in self.values}

    def _enter(self, body: Body, flowing: Sequence[bool]) -> None:
        places = [node for node in body.graph.nodes if node.op == "placeholder"]
        self.values |= {place for place, flows in zip(places, flowing, strict=True) if flows}
        self.visit(body.graph)


def _counter(regions: Regions) -> Symbol:
    counter = regions.bodies[0][0].counter
    assert counter is not None
    return counter
