"""The stages of a program whose graphs are at hand: fx, IR with nodes as locations, dispatches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from turbine.capture import work
from turbine.capture.declared_ops import PROGRAMS
from turbine.kernel.program.work import work_of
from turbine.mlir.ir import Module
from turbine.mlir.located_text import NODE, LocatedLine, located_lines
from turbine.page.assembly import functions_of
from turbine.page.source_files import places_of, read_lines
from turbine.page.stages import DispatchText, Line, Op, Stages

_ASSIGNED = re.compile(r'^\s*(\w+)(?:: "[^"]*")? = ')
# "x = None" behind a statement frees a value.
_FREED = re.compile(r";\s+(?:\w+ = )+None\b.*$")
_LEFT_OUT = re.compile(r"^\s*#|^\s*$|^class ")
_INDENT = 4 * " "  # of a method
# What Dynamo has in place of a path: "L['self']._modules['fc']" for "fc".
_DYNAMO_ROOT = re.compile(r"^L\[['\"]\w+['\"]\]\.?")
_DYNAMO_STEP = re.compile(r"\.?_modules\[['\"](\w+)['\"]\]|\[(\d+)\]|\._orig_mod\b")


@dataclass(frozen=True)
class NodeNames:
    """The nodes of some graphs by the names that locations of the IR have for them."""

    nodes: Mapping[str, fx.Node]
    graphs: Mapping[fx.Graph, str]

    @staticmethod
    def of(graphs: Mapping[str, fx.GraphModule]) -> NodeNames:
        """The names of the calls in graphs, which have names themselves."""
        nodes = {
            f"{NODE}{name}/{node.name}": node
            for name, graph in graphs.items()
            for node in _calls(graph)
        }
        return NodeNames(nodes, _names_of(graphs))

    @staticmethod
    def of_part(name: str, graph: fx.GraphModule) -> NodeNames:
        """Those of a part under torch.compile, whose locations do not name the graph."""
        nodes = {f"{NODE}{node.name}": node for node in _calls(graph)}
        return NodeNames(nodes, _names_of({name: graph}))

    def op_name(self, node: fx.Node) -> str:
        """The graph and the node, "main/addmm"."""
        return f"{self.graphs[node.graph]}/{node.name}"

    def locate(self, node: fx.Node) -> str:
        """The location of a node, for the importer; that of others is never looked up."""
        return self._inverse.get(node, NODE)

    @cached_property
    def _inverse(self) -> dict[fx.Node, str]:
        return {node: name for name, node in self.nodes.items()}


def _calls(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def _names_of(graphs: Mapping[str, fx.GraphModule]) -> dict[fx.Graph, str]:
    return {graph.graph: name for name, graph in graphs.items()}


@dataclass(frozen=True)
class Origins:
    """Ops by what locations call them: nodes, and places where there are none."""

    ops: tuple[Op, ...]
    numbers: Mapping[str, int]

    @staticmethod
    def of(names: NodeNames, others: Iterable[str]) -> Origins:
        """The nodes, and those of the other origins that are lines of files."""
        ops = [_op(names.op_name(node), node) for node in names.nodes.values()]
        places = dict.fromkeys(one for one in others if not one.startswith(NODE))
        ops += [Op(place, (place,)) for place in places]
        every = [*names.nodes, *places]
        numbers = {name: number for number, name in enumerate(every)}
        calls = {op.name: number for number, op in enumerate(ops)}
        return Origins(tuple(ops), calls | numbers)

    def find(self, origins: Iterable[str]) -> tuple[int, ...]:
        """The numbers of those that are ops."""
        return tuple(self.numbers[one] for one in origins if one in self.numbers)


def build(
    graphs: Mapping[str, fx.GraphModule],
    names: NodeNames,
    module: Module,
    dispatches: Sequence[Mapping[str, Any]],
    assembly: str,
    prefix: str = "",
) -> Stages:
    """The stages of a module whose locations are names of nodes; `prefix` is for dispatches."""
    ir = located_lines(module)
    found = Origins.of(names, [one for line in ir for one in line.origins])
    code = functions_of(assembly)
    texts = {
        prefix + row["name"]: DispatchText(
            found.find(row["origins"]), row["text"], code.get(row["name"], "")
        )
        for row in dispatches
    }
    places = [place for op in found.ops for place in op.places]
    return Stages(
        found.ops,
        tuple(_graph_lines(graphs, found)),
        tuple(_link(line, found) for line in ir),
        texts,
        read_lines(places),
    )


def _link(line: LocatedLine, found: Origins) -> Line:
    return Line(line.text, found.find(line.origins))


def _op(name: str, node: fx.Node) -> Op:
    return Op(name, places_of(node.stack_trace), module_of(node), _operations(node))


def _operations(node: fx.Node) -> float:
    try:
        program = PROGRAMS.get(work.name_of(node))
        if program is None:
            return work.operations(node)
        return work_of(*program(*work.arguments_of(node))).operations
    except (KeyError, AttributeError, IndexError):  # a node without values, as of control flow
        return 0.0


def module_of(node: fx.Node) -> str:
    """The path of the module whose forward called an op, "encoder.layer.0"."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    steps = _DYNAMO_STEP.sub(r".\1\2", _DYNAMO_ROOT.sub("", paths[-1])) if paths else ""
    return steps.strip(".")


def _graph_lines(graphs: Mapping[str, fx.GraphModule], found: Origins) -> Iterable[Line]:
    for name, graph in graphs.items():
        yield Line(f"# {name}")
        for text in str(graph.print_readable(print_output=False)).splitlines():
            if not _LEFT_OUT.match(text):
                assigned = _ASSIGNED.match(text)
                origin = () if assigned is None else (f"{name}/{assigned[1]}",)
                yield Line(_FREED.sub("", text).removeprefix(_INDENT), found.find(origin))
