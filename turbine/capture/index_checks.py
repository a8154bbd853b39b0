"""Check indices that depend on a call's data: compiled code would read outside its memory.

Each such index is clamped, so that nothing outside is touched, and an assertion ahead of it makes
the call fail as eager PyTorch does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from turbine.capture.effects import is_ordered

aten = torch.ops.aten
Size = int | fx.Node


@dataclass(frozen=True)
class Index:
    """An index tensor, the axis it selects from, and whether it may count from the end."""

    node: fx.Node
    source: fx.Node
    axis: int
    from_end: bool


def check_indices(graph: fx.Graph, changing: Iterable[str]) -> None:
    """Guard every index computed from the placeholders named in `changing`."""
    for node in _dependents(graph, set(changing)):
        find = _INDICES.get(node.target)
        for index in list(find(node)) if find is not None else []:
            if index.node.meta["val"].dtype in (torch.int32, torch.int64):
                node.replace_input_with(index.node, _guarded(graph, node, index))


def check_early(graph: fx.Graph) -> None:
    """Move assertions, with what they are computed from, ahead of all else.

    Compiled code updates state in place, so a call that is to fail has to before it does.
    """
    early: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target is aten._assert_async.msg:
            sources = _sources(node)
            if not any(is_ordered(source) for source in sources):
                early |= {node, *sources}
    rest = next(n for n in graph.nodes if n.op != "placeholder" and n not in early)
    for node in [node for node in graph.nodes if node in early]:
        rest.prepend(node)


def _sources(node: fx.Node) -> set[fx.Node]:
    """The nodes that a node is computed from, without placeholders."""
    found: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        source = waiting.pop()
        if source.op != "placeholder" and source not in found:
            found.add(source)
            waiting += source.all_input_nodes
    return found


def _dependents(graph: fx.Graph, names: set[str]) -> list[fx.Node]:
    """Nodes whose values follow from those placeholders; sizes alone do not count."""
    reached: list[fx.Node] = []
    for node in graph.nodes:
        if node.op != "call_function" or node.target is aten.sym_size.int:
            continue
        if any(argument.name in names for argument in node.all_input_nodes):
            names.add(node.name)
            reached.append(node)
    return reached


def _guarded(graph: fx.Graph, user: fx.Node, index: Index) -> fx.Node:
    """The index, clamped, after an assertion that clamping changes nothing."""
    with graph.inserting_before(user):
        size = _size(graph, user, index)
        last = size - 1 if isinstance(size, int) else _emit(graph, user, operator.sub, size, 1)
        first: Size = 0
        if index.from_end:
            first = -size if isinstance(size, int) else _emit(graph, user, operator.mul, size, -1)
        inside = _emit(graph, user, aten.clamp.default, index.node, first, last)
        same = _emit(graph, user, aten.eq.Tensor, inside, index.node)
        holds = _emit(graph, user, aten.all.default, same)
        message = f"{user.target}: index out of range along axis {index.axis}"
        _emit(graph, user, aten._assert_async.msg, holds, message)
    return inside


def _size(graph: fx.Graph, user: fx.Node, index: Index) -> Size:
    size = index.source.meta["val"].shape[index.axis]
    if isinstance(size, int):
        return size
    return _emit(graph, user, aten.sym_size.int, index.source, index.axis)


def _emit(graph: fx.Graph, beside: fx.Node, target: Callable[..., Any], *args: Any) -> fx.Node:
    """A new node with the value and the source line the importer asks for."""
    node = graph.call_function(target, args)
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
    node.meta["val"] = None if target is aten._assert_async.msg else target(*values)
    if beside.stack_trace is not None:
        node.meta["stack_trace"] = beside.stack_trace
    return node


def _along(source: int, axis: int, index: int) -> Callable[[fx.Node], Iterator[Index]]:
    """An op with one index tensor for the axis given as an argument."""

    def find(node: fx.Node) -> Iterator[Index]:
        tensor, place, chosen = node.args[source], node.args[axis], node.args[index]
        if isinstance(tensor, fx.Node) and isinstance(chosen, fx.Node) and isinstance(place, int):
            rank = tensor.meta["val"].dim()
            if rank:
                yield Index(chosen, tensor, place % rank, from_end=False)

    return find


def _embedding(node: fx.Node) -> Iterator[Index]:
    table, chosen = node.args[0], node.args[1]
    if isinstance(table, fx.Node) and isinstance(chosen, fx.Node):
        yield Index(chosen, table, 0, from_end=False)


def _advanced(node: fx.Node) -> Iterator[Index]:
    """x[i, :, j]: one optional index tensor for each leading axis."""
    tensor, indices = node.args[0], node.args[1]
    if isinstance(tensor, fx.Node) and isinstance(indices, Sequence):
        for axis, chosen in enumerate(indices):
            if isinstance(chosen, fx.Node):
                yield Index(chosen, tensor, axis, from_end=True)


_INDICES: dict[Any, Callable[[fx.Node], Iterator[Index]]] = {
    aten.embedding.default: _embedding,
    aten.index.Tensor: _advanced,
    aten._unsafe_index.Tensor: _advanced,
    aten.index_put.default: _advanced,
    aten.index_select.default: _along(0, 1, 2),
    aten.gather.default: _along(0, 1, 2),
    aten.scatter.src: _along(0, 1, 2),
    aten.scatter.value: _along(0, 1, 2),
    aten.scatter_add.default: _along(0, 1, 2),
    aten.scatter_reduce.two: _along(0, 1, 2),
}
