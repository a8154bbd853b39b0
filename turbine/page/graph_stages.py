"""The stages of a program whose graphs are at hand: fx, IR with nodes as locations, dispatches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from turbine.capture import work
from turbine.mlir.ir import Module
from turbine.mlir.located_text import NODE, LocatedLine, located_lines
from turbine.page.assembly import functions_of
from turbine.page.source_files import places_of, read_lines
from turbine.page.stages import DispatchText, Line, Op, Stages

_ASSIGNED = re.compile(r'^\s*(\w+)(?:: "[^"]*")? = ')
# "x = None" behind a statement frees a value.
_FREED = re.compile(r";\s+(?:\w+ = )+None\b.*$")
_COMMENT = re.compile(r"^\s*#")
# What module stacks have in place of a name, "L['self'].fc" under torch.compile.
_DYNAMO_ROOT = re.compile(r"^L\['\w+'\]\.?|^_orig_mod\.?")


@dataclass(frozen=True)
class NodeNames:
    """The nodes of some graphs by the names that locations of the IR have for them."""

    nodes: Mapping[str, fx.Node]

    @staticmethod
    def of(graphs: Mapping[str, fx.GraphModule]) -> NodeNames:
        """The names of the calls in graphs, which have names themselves."""
        return NodeNames(
            {
                f"{NODE}{name}/{node.name}": node
                for name, graph in graphs.items()
                for node in graph.graph.nodes
                if node.op == "call_function"
            }
        )

    def locate(self, node: fx.Node) -> str:
        """The location of a node, for the importer; that of others is never looked up."""
        return self._inverse.get(node, NODE)

    @cached_property
    def _inverse(self) -> dict[fx.Node, str]:
        return {node: name for name, node in self.nodes.items()}


@dataclass(frozen=True)
class Origins:
    """Ops by what locations call them: nodes, and places where there are none."""

    ops: tuple[Op, ...]
    numbers: Mapping[str, int]

    @staticmethod
    def of(nodes: Mapping[str, fx.Node], others: Iterable[str]) -> Origins:
        """The nodes, and those of the other origins that are lines of files."""
        ops = [_op(name, node) for name, node in nodes.items()]
        places = dict.fromkeys(one for one in others if not one.startswith(NODE))
        ops += [Op(place, (place,)) for place in places]
        names = [*nodes, *places]
        return Origins(tuple(ops), {name: number for number, name in enumerate(names)})

    def find(self, origins: Iterable[str]) -> tuple[int, ...]:
        """The numbers of those that are ops."""
        return tuple(self.numbers[one] for one in origins if one in self.numbers)


def build(
    graphs: Mapping[str, fx.GraphModule],
    nodes: Mapping[str, fx.Node],
    module: Module,
    dispatches: Sequence[Mapping[str, Any]],
    assembly: str,
) -> Stages:
    """The stages of a module whose locations are names of `nodes`; see `NodeNames`."""
    ir = located_lines(module)
    found = Origins.of(nodes, [one for line in ir for one in line.origins])
    code = functions_of(assembly)
    texts = {
        row["name"]: DispatchText(
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
    return Op(
        name.removeprefix(NODE), places_of(node.stack_trace), module_of(node), _operations(node)
    )


def _operations(node: fx.Node) -> float:
    try:
        return work.operations(node)
    except (KeyError, AttributeError, IndexError):  # a node without values, as of control flow
        return 0.0


def module_of(node: fx.Node) -> str:
    """The path of the module whose forward called an op, "encoder.layer.0"."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    return _DYNAMO_ROOT.sub("", paths[-1]) if paths else ""


def _graph_lines(graphs: Mapping[str, fx.GraphModule], found: Origins) -> Iterable[Line]:
    for name, graph in graphs.items():
        if len(graphs) > 1:
            yield Line(f"# {name}")
        for text in str(graph.print_readable(print_output=False)).splitlines():
            if text.strip() and not _COMMENT.match(text):
                assigned = _ASSIGNED.match(text)
                origin = () if assigned is None else (f"{NODE}{name}/{assigned[1]}",)
                yield Line(_FREED.sub("", text), found.find(origin))
