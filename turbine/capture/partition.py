"""Split a graph into few, large parts for the compiler, and ops that PyTorch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from turbine.capture.control_flow import body_at, with_bodies
from turbine.capture.effects import draws, is_ordered, writes

# Smaller parts run in PyTorch: calling compiled code would cost more than it saves.
LEAST_OPS = 3


@dataclass(frozen=True)
class Part:
    """A subgraph, and the nodes of the whole graph that are its inputs and results."""

    graph: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Partition:
    """The whole graph with one `call_module` node per part."""

    outer: fx.GraphModule
    parts: dict[str, Part]  # by the name of the module


Compiles = Callable[[fx.Node], bool]


def partition(
    whole: fx.GraphModule,
    compiles: Compiles,
    *,
    cut: int | None = None,
    is_worth_a_part: Callable[[fx.Node], bool] = lambda _: False,
) -> Partition:
    """Put every op for which `compiles` is true in a part of at least LEAST_OPS ops.

    With `cut`, the first `cut` ops are a separate part. A part with an op that `is_worth_a_part`
    may be smaller.
    """
    schedule = _Schedule(whole.graph, compiles, cut)
    while small := [
        node
        for nodes in schedule.small_parts()
        if not any(map(is_worth_a_part, nodes))
        for node in nodes
    ]:
        schedule.leave(small)
    return _Assembly(whole, schedule).partition()


def is_free(node: fx.Node) -> bool:
    """Whether a node is a view, size or fill: cheap, and computed on both sides of a boundary."""
    target = node.target
    if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool)):
        return target is not operator.getitem  # of a loop that counts
    if not isinstance(target, torch._ops.OpOverload) or not _is_tensor(node):
        return False
    if target._schema.is_mutable or draws(target):
        return False
    makes = not any(_is_tensor(argument) for argument in node.all_input_nodes)
    return makes or target.is_view or target is torch.ops.aten._unsafe_view.default


def is_compute(node: fx.Node) -> bool:
    """Whether a node computes: an op that is neither free nor a getitem."""
    calls = node.op == "call_function" and node.target is not operator.getitem
    return calls and not is_free(node)


# Note [Times]
# Every value gets a time. Parts run at even times and PyTorch at odd ones; arguments are available
# at -1. An op runs at the first time of its side at which all its operands are available. So no
# part depends on itself, and a chain with n changes of side makes at most n parts.
_START = -1


class _Schedule:
    """When each node of a graph runs, and on which side."""

    def __init__(self, graph: fx.Graph, compiles: Compiles, cut: int | None) -> None:
        self.nodes = [node for node in graph.nodes if node.op == "call_function"]
        self.compiled = {node for node in self.nodes if compiles(node) and not is_ordered(node)}
        self.first = set([n for n in self.nodes if self._in_part(n)][:cut]) if cut else None
        self.time: dict[fx.Node, int] = {}
        self._assign()

    def leave(self, nodes: Iterable[fx.Node]) -> None:
        """Run these nodes in PyTorch."""
        self.compiled.difference_update(nodes)
        self._assign()

    def is_free(self, node: fx.Node) -> bool:
        return node in self.compiled and is_free(node)

    def parts(self) -> dict[int, list[fx.Node]]:
        """The nodes of each part that are not free, in order."""
        found: dict[int, list[fx.Node]] = {}
        for node in self.nodes:
            if self._in_part(node):
                found.setdefault(self.time[node], []).append(node)
        return dict(sorted(found.items()))

    def small_parts(self) -> list[list[fx.Node]]:
        """The parts with fewer than LEAST_OPS ops, unless a part is the whole graph."""
        parts = self.parts()
        elsewhere = any(n not in self.compiled and is_compute(n) for n in self.nodes)
        if len(parts) == 1 and not elsewhere:
            return []
        counts = {time: sum(map(is_compute, with_bodies(nodes))) for time, nodes in parts.items()}
        return [nodes for time, nodes in parts.items() if counts[time] < LEAST_OPS]

    def _in_part(self, node: fx.Node) -> bool:
        return node in self.compiled and not is_free(node)

    def _assign(self) -> None:
        time = self.time = {}
        latest = floor = ordered = _START
        for node in self.nodes:
            ready = max([floor, *(time.get(n, _START) for n in node.all_input_nodes)])
            if node.target is operator.getitem:
                time[node] = ready
                follows = node.all_input_nodes[0] in self.compiled
                (self.compiled.add if follows else self.compiled.discard)(node)
                continue
            if self.is_free(node):
                time[node] = ready
                continue
            if node in self.compiled:
                late = self.first is not None and node not in self.first
                time[node] = _even(max(ready, 2) if late else ready)
            else:
                if is_ordered(node):
                    ready = max(ready, ordered)
                if writes(node):
                    ready = max(ready, latest)
                time[node] = _odd(ready)
                ordered = time[node] if is_ordered(node) else ordered
                floor = time[node] if writes(node) else floor
            latest = max(latest, time[node])


def _even(time: int) -> int:
    return time + time % 2


def _odd(time: int) -> int:
    return time + (time + 1) % 2


class _Assembly:
    """Builds the parts and the graph around them."""

    def __init__(self, whole: fx.GraphModule, schedule: _Schedule) -> None:
        self.whole = whole
        self.schedule = schedule
        self.outer = fx.Graph()
        self.value: dict[fx.Node, fx.Node] = {}  # node of the whole graph -> node of the outer one
        self.parts: dict[str, Part] = {}

    def partition(self) -> Partition:
        for node in self.whole.graph.nodes:
            if node.op == "placeholder":
                self._copy(node)
        for steps in self._in_time():
            if isinstance(steps, Part):
                self._call(steps)
            else:
                self._outside(steps)
        (output,) = (node for node in self.whole.graph.nodes if node.op == "output")
        self._copy(output)
        modules = {name: part.graph for name, part in self.parts.items()}
        outer = fx.GraphModule({**attributes_of(self.whole), **modules}, self.outer)
        return Partition(outer, self.parts)

    def _in_time(self) -> list[Part | fx.Node]:
        """Parts and PyTorch's nodes in execution order."""
        parts = {time: self._cut_out(nodes) for time, nodes in self.schedule.parts().items()}
        needed = self._needed_outside(parts.values())
        steps: list[tuple[int, Part | fx.Node]] = []
        for time, (inner, inputs) in parts.items():
            results = tuple(n for n in inner if n in needed and not self.schedule.is_free(n))
            steps.append((time, make_part(self.whole, inner, inputs, results)))
        for node in self.schedule.nodes:
            if node not in self.schedule.compiled:
                steps.append((self.schedule.time[node], node))
        return [step for _, step in sorted(steps, key=operator.itemgetter(0))]

    def _cut_out(self, nodes: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
        """The nodes of a part with the free ones they read, and its inputs."""
        inside = set(nodes)
        inputs: dict[fx.Node, None] = {}
        pending = list(nodes)
        while pending:
            for argument in pending.pop().all_input_nodes:
                if argument in inside:
                    continue
                if self.schedule.is_free(argument) or body_at(argument) is not None:
                    inside.add(argument)
                    pending.append(argument)
                else:
                    inputs[argument] = None
        order = {node: k for k, node in enumerate(self.whole.graph.nodes)}
        return sorted(inside, key=order.__getitem__), sorted(inputs, key=order.__getitem__)

    def _needed_outside(self, parts: Iterable[tuple[list[fx.Node], list[fx.Node]]]) -> set[fx.Node]:
        """The values that PyTorch's ops, other parts or the caller read."""
        needed = {argument for _, inputs in parts for argument in inputs}
        for node in reversed(self.whole.graph.nodes):
            outside = node.op == "output" or (
                node.op == "call_function"
                and (node not in self.schedule.compiled or self._is_free_and(needed, node))
            )
            if outside:
                needed.update(node.all_input_nodes)
        return needed

    def _is_free_and(self, needed: set[fx.Node], node: fx.Node) -> bool:
        return self.schedule.is_free(node) and node in needed

    def _call(self, part: Part) -> None:
        name = f"part_{len(self.parts)}"
        self.parts[name] = part
        call = self.outer.call_module(name, tuple(self._outside(n) for n in part.inputs))
        for index, node in enumerate(part.results):
            self.value[node] = self.outer.call_function(operator.getitem, (call, index))
            self.value[node].meta = dict(node.meta)

    def _outside(self, node: fx.Node) -> fx.Node:
        """The node in the outer graph, added before its first use to keep its lifetime short."""
        if node not in self.value:
            for argument in node.all_input_nodes:
                self._outside(argument)
            self._copy(node)
        return self.value[node]

    def _copy(self, node: fx.Node) -> None:
        self.value[node] = self.outer.node_copy(node, self._outside)


def make_part(
    whole: fx.GraphModule, inner: list[fx.Node], inputs: list[fx.Node], results: tuple[fx.Node, ...]
) -> Part:
    """The subgraph of some nodes, in order."""
    graph = fx.Graph()
    value: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        value[node] = graph.placeholder(node.name)
        value[node].meta = dict(node.meta)
    for node in inner:
        value[node] = graph.node_copy(node, value.__getitem__)
    graph.output(tuple(value[node] for node in results))
    return Part(fx.GraphModule(attributes_of(whole), graph), tuple(inputs), results)


def attributes_of(whole: fx.GraphModule) -> dict[str, Any]:
    """The attributes that `get_attr` nodes read: constants, and branches of control flow."""
    names = [str(node.target) for node in whole.graph.nodes if node.op == "get_attr"]
    return {name: operator.attrgetter(name)(whole) for name in names}


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
