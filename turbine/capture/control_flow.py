"""Control flow ops of PyTorch, and the graphs that they run."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

from torch import fx
from torch._ops import HigherOrderOperator

# By name: PyTorch declares some of them when their modules are imported.
OPS = {"cond", "while_loop", "scan", "map_impl"}


def is_control_flow(node: fx.Node) -> bool:
    """Whether a node is a branch or a loop that can be compiled."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in OPS


def bodies(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a control flow op runs; none for other nodes."""
    if not is_control_flow(node):
        return []
    return [body for one in node.all_input_nodes if (body := body_at(one)) is not None]


def body_at(node: fx.Node) -> fx.GraphModule | None:
    """The graph that a `get_attr` node reads; None for other nodes."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return None
    value = operator.attrgetter(str(node.target))(owner)
    return value if isinstance(value, fx.GraphModule) else None


def all_bodies(module: fx.GraphModule) -> list[fx.GraphModule]:
    """The graphs of all control flow in a graph, at any depth; each once."""
    found = [body_at(node) for node in module.graph.find_nodes(op="get_attr")]
    own = [body for body in found if body is not None]
    return list(dict.fromkeys(one for body in own for one in (body, *all_bodies(body))))


def with_bodies(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Nodes, and those of the graphs that they run."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from with_bodies(body.graph.nodes)
