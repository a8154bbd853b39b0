"""Check indices and wrap negative ones: compiled code would read or write out of bounds.

An index that may be out of range is replaced by 0 where it is, so that no other memory is accessed,
and an assertion before it makes the call fail as in eager PyTorch. Negative indices are wrapped:
the compiler's scatters do not support them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from turbine.capture.effects import is_ordered
from turbine.capture.nodes import emit
from turbine.capture.sizes import expression, is_empty

aten = torch.ops.aten
Size = int | fx.Node
IS_OF_INDICES = "is_of_indices"  # in the metadata of assertions
Bounds = tuple[int, int] | None  # the least and the largest element, if they are known


@dataclass(frozen=True)
class Index:
    """An index tensor, the axis it selects from, and whether it may count from the end."""

    node: fx.Node
    source: fx.Node
    axis: int
    from_end: bool
    place: tuple[int, ...]  # its path in the nested arguments of the op


def check_indices(graph: fx.Graph) -> None:
    """Check and wrap every index, except for constants known to be in range."""
    constants = _Constants(graph)
    found = [(node, index) for node in graph.nodes for index in _indices(node)]
    bounds = {index.node: constants.bounds(_origin(index.node)) for _, index in found}
    made: dict[Any, fx.Node] = {}
    for node, index in found:
        key = (index.node, expression(_extent(index)), index.from_end)
        if key not in made:
            with graph.inserting_before(node):
                made[key] = _make_safe(graph, node, index, bounds[index.node])
        # One index may be used for several axes with different sizes: x[i, i].
        node.args = _put(node.args, index.place, made[key])


def _indices(node: fx.Node) -> list[Index]:
    """The index tensors of a node, without masks."""
    find = _INDICES.get(node.target)
    found = list(find(node)) if find is not None else []
    return [one for one in found if one.node.meta["val"].dtype in (torch.int32, torch.int64)]


def check_early(graph: fx.Graph) -> None:
    """Move assertions and their operands before all other nodes.

    Compiled code updates state in place, so a call has to fail before the first update.
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


def check_late(graph: fx.Graph) -> None:
    """Move the assertions about indices after all other nodes, which do not rely on them.

    A GPU then computes the results while the host waits for what the assertions read.
    """
    last = graph.output_node()
    for node in graph.find_nodes(op="call_function", target=aten._assert_async.msg):
        if IS_OF_INDICES in node.meta:
            last.prepend(node)


def _sources(node: fx.Node) -> set[fx.Node]:
    """The transitive operands of a node, without placeholders."""
    found: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        source = waiting.pop()
        if source.op != "placeholder" and source not in found:
            found.add(source)
            waiting += source.all_input_nodes
    return found


class _Constants:
    """The values of nodes that depend on neither arguments nor weights, computed on demand."""

    def __init__(self, graph: fx.Graph) -> None:
        self._values: dict[fx.Node, torch.Tensor] = {}
        self._nodes: set[fx.Node] = set()
        for node in graph.nodes:
            if _is_computable(node) and self._nodes.issuperset(node.all_input_nodes):
                self._nodes.add(node)

    def bounds(self, node: fx.Node) -> Bounds:
        """The least and the largest element, if they are known."""
        if node not in self._nodes:
            return None
        with _disable_current_modes():  # under torch.compile, tensors are fake otherwise
            value = self._value(node)
            return (int(value.min()), int(value.max())) if value.numel() else (0, -1)

    def _value(self, node: fx.Node) -> torch.Tensor:
        if node not in self._values:
            target: Any = node.target
            args, kwargs = fx.map_arg((node.args, node.kwargs), self._value)
            self._values[node] = target(*args, **kwargs)
        return self._values[node]


# Larger constants are checked at run time.
_MOST_ELEMENTS = 1 << 20


def _is_computable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(node.target, torch._ops.OpOverload) or is_ordered(node):
        return False
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    sizes = list(value.shape)
    return all(isinstance(n, int) for n in sizes) and value.numel() <= _MOST_ELEMENTS


def _make_safe(graph: fx.Graph, user: fx.Node, index: Index, bounds: Bounds) -> fx.Node:
    """The index, in range and counted from the start."""
    if index.node.meta["val"].dtype != torch.int64:
        # The compiler confuses int32 with int64 indices.
        wide = emit(graph, aten._to_copy.default, index.node, dtype=torch.int64, beside=user)
        index = replace(index, node=wide)
    extent = _extent(index)
    if _are_within(bounds, 0, extent):
        return index.node
    size = _size(graph, user, index)
    if not (index.from_end and _are_within(bounds, -extent, extent)):
        index = replace(index, node=_guard(graph, user, index, size))
    return _wrap(graph, user, index, size) if index.from_end else index.node


def _are_within(bounds: Bounds, first: int | torch.SymInt, end: int | torch.SymInt) -> bool:
    if bounds is None or not isinstance(end, int):
        return False
    return bounds[0] >= first and bounds[1] < end


def _put(values: Any, place: tuple[int, ...], value: fx.Node) -> Any:
    """Nested arguments with the value at a path replaced."""
    if not place:
        return value
    first, *rest = place
    return type(values)(
        _put(one, tuple(rest), value) if at == first else one for at, one in enumerate(values)
    )


def _guard(graph: fx.Graph, user: fx.Node, index: Index, size: Size) -> fx.Node:
    """The index, or 0 where it is out of range, after an assertion that it is in range.

    The assertion reads the elements before they are expanded or repeated: IREE 3.13 does not
    reduce an axis of dynamic size that is broadcast, and there are fewer of them.

    It is not clamped: along an axis of one element that gives a constant, which IREE 3.13 hoists
    together with a constant that is written there, and confuses with it.
    """
    last = size - 1 if isinstance(size, int) else emit(graph, operator.sub, size, 1, beside=user)
    first: Size = 0
    if index.from_end:
        first = -size if isinstance(size, int) else emit(graph, operator.mul, size, -1, beside=user)
    origin = _origin(index.node)
    checked = _compare(graph, user, origin, first, last)
    holds = emit(graph, aten.all.default, checked, beside=user)
    message = f"{user.target}: index out of range along axis {index.axis}"
    assertion = emit(graph, aten._assert_async.msg, holds, message, beside=user)
    assertion.meta[IS_OF_INDICES] = True
    is_origin = origin is index.node
    within = checked if is_origin else _compare(graph, user, index.node, first, last)
    start = emit(graph, aten.zeros_like.default, index.node, beside=user)
    return emit(graph, aten.where.self, within, index.node, start, beside=user)


# Ops whose results have the elements of their first argument, in other places or more than once.
_REARRANGING = frozenset(
    {
        aten.alias.default,
        aten.clone.default,
        aten.expand.default,
        aten.permute.default,
        aten.repeat.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        aten.view.default,
    }
)


def _origin(index: fx.Node) -> fx.Node:
    """The tensor whose elements an index has; that of an empty index is itself."""
    if is_empty(index.meta["val"]):
        return index
    while index.target in _REARRANGING or _is_widening(index):
        index = index.all_input_nodes[0]
    return index


def _is_widening(node: fx.Node) -> bool:
    if node.target is not aten._to_copy.default:
        return False
    dtypes = [one.meta["val"].dtype for one in (*node.all_input_nodes, node)]
    return dtypes == [torch.int32, torch.int64]


def _compare(graph: fx.Graph, user: fx.Node, index: fx.Node, first: Size, last: Size) -> fx.Node:
    """Whether each element is in a range."""
    above = emit(graph, aten.ge.Scalar, index, first, beside=user)
    below = emit(graph, aten.le.Scalar, index, last, beside=user)
    return emit(graph, aten.logical_and.default, above, below, beside=user)


def _wrap(graph: fx.Graph, user: fx.Node, index: Index, size: Size) -> fx.Node:
    """The index, with the size added where it is negative."""
    negative = emit(graph, aten.lt.Scalar, index.node, 0, beside=user)
    from_start = emit(graph, aten.add.Scalar, index.node, size, beside=user)
    return emit(graph, aten.where.self, negative, from_start, index.node, beside=user)


def _extent(index: Index) -> Any:
    """The size of the axis, which may be symbolic."""
    return index.source.meta["val"].shape[index.axis]


def _size(graph: fx.Graph, user: fx.Node, index: Index) -> Size:
    size = _extent(index)
    if isinstance(size, int):
        return size
    return emit(graph, aten.sym_size.int, index.source, index.axis, beside=user)


def _along(source: int, axis: int, index: int) -> Callable[[fx.Node], Iterator[Index]]:
    """A finder for ops with one index tensor, for an axis that is an argument."""

    def find(node: fx.Node) -> Iterator[Index]:
        tensor, place, chosen = node.args[source], node.args[axis], node.args[index]
        if isinstance(tensor, fx.Node) and isinstance(chosen, fx.Node) and isinstance(place, int):
            rank = tensor.meta["val"].dim()
            if rank:
                yield Index(chosen, tensor, place % rank, False, (index,))

    return find


def _embedding(node: fx.Node) -> Iterator[Index]:
    table, chosen = node.args[0], node.args[1]
    if isinstance(table, fx.Node) and isinstance(chosen, fx.Node):
        yield Index(chosen, table, 0, False, (1,))


def _advanced_indices(node: fx.Node) -> Iterator[Index]:
    """x[i, :, j]: one optional index tensor for each leading axis."""
    tensor, indices = node.args[0], node.args[1]
    if isinstance(tensor, fx.Node) and isinstance(indices, Sequence):
        for axis, chosen in enumerate(indices):
            if isinstance(chosen, fx.Node):
                yield Index(chosen, tensor, axis, True, (1, axis))


_INDICES: dict[Any, Callable[[fx.Node], Iterator[Index]]] = {
    aten.embedding.default: _embedding,
    aten.index.Tensor: _advanced_indices,
    aten.index_put.default: _advanced_indices,
    aten.index_select.default: _along(0, 1, 2),
    aten.gather.default: _along(0, 1, 2),
    aten.scatter.src: _along(0, 1, 2),
    aten.scatter.value: _along(0, 1, 2),
    aten.scatter_add.default: _along(0, 1, 2),
    aten.scatter_reduce.two: _along(0, 1, 2),
}
