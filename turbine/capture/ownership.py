"""Keep in-place ops from overwriting the caller's tensors and each other's.

IREE 3.13 lets a scatter or a sort overwrite an argument that has no later reads, so that
`x.index_put(...)` or `x.topk(2)` would change x. Each such op gets a copy of its operand instead,
which the compiler fuses with the op that makes the operand. An op whose operand has other readers
gets a copy too: the compiler may write to the operand before they run.

IREE also shares one fill of dynamic size between several in-place ops: in a backward graph, two
slices of one tensor scatter their gradients to the same zeros. Each op gets a distinct fill.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import fx

from turbine.capture.control_flow import is_control_flow
from turbine.capture.declared_ops import may_overwrite
from turbine.capture.effects import FILLS
from turbine.capture.nodes import emit
from turbine.capture.sizes import count_elements, is_static

aten = torch.ops.aten

# Ops whose result may share the memory of their first argument.
IN_PLACE = {
    aten.index_put.default,
    aten._unsafe_index_put.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.sort.default,
    aten.topk.default,
    aten.kthvalue.default,
}


def isolate_writes(graph: fx.Graph, arguments: Iterable[str]) -> None:
    """Run all passes; fills come first, since a copy of a fill is no fill."""
    separate_fills(graph)
    copy_parts(graph)
    keep_arguments(graph, arguments)


def keep_arguments(graph: fx.Graph, arguments: Iterable[str]) -> None:
    """Copy the operand of every in-place op if it is an argument or has other readers."""
    names = set(arguments)
    for node in list(graph.nodes):
        for operand in _overwritten_operands(node):
            if _may_share_memory(operand, names) or _is_read_elsewhere(operand):
                with graph.inserting_before(node):
                    node.replace_input_with(operand, _copy(graph, node, operand))


def separate_fills(graph: fx.Graph) -> None:
    """Give every in-place op on a fill of dynamic size a distinct fill.

    The compiler merges equal fills, even of different shapes if the number of elements is equal.
    """
    numbers = count(1)
    has_several = sum(node.target in FILLS for node in graph.nodes) > 1
    for writer in [node for node in graph.nodes if node.target in IN_PLACE]:
        filled: Any = writer.args[0]
        *_, fill = _views_to(filled)
        is_shared = has_several or _is_read_elsewhere(filled)
        if fill.target in FILLS and is_shared and not is_static(filled.meta["val"]):
            with graph.inserting_before(writer):
                own = _distinct_fill(graph, filled, fill, next(numbers))
            # Only the first operand: the source may be the same fill.
            writer.args = (own, *writer.args[1:])


def _is_read_elsewhere(node: fx.Node) -> bool:
    """Whether a value, or a value that it is a view of, has other users: `v[2:5] = 2 * v[0:3]`."""
    return any(len(one.users) > 1 for one in _views_to(node))


def _views_to(node: fx.Node) -> Iterator[fx.Node]:
    """A value, the value it is a view of, and so on; clones count, as the compiler drops them."""
    yield node
    while isinstance(node.target, torch._ops.OpOverload) and (
        node.target.is_view or node.target is aten.clone.default
    ):
        node = node.all_input_nodes[0]
        yield node


def _distinct_fill(graph: fx.Graph, filled: fx.Node, fill: fx.Node, number: int) -> fx.Node:
    """The fill plus a zero that the compiler cannot fold.

    `size // (size + number)` is zero for every size, and a different expression for each fill, so
    that the compiler does not merge them.
    """

    def add(value: Any, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        node = graph.call_function(target, args, kwargs)
        node.meta = {**filled.meta, "val": value}
        node.meta.pop("tensor_meta", None)
        return node

    like = filled.meta["val"]
    sizes = [
        size if isinstance(size, int) else add(size, aten.sym_size.int, filled, axis)
        for axis, size in enumerate(like.shape)
    ]
    size = next(one for one in sizes if isinstance(one, fx.Node))
    extent = size.meta["val"]
    more = add(extent + number, operator.add, size, number)
    zero = add(extent // (extent + number), operator.floordiv, size, more)
    dtype = like.dtype if like.dtype != torch.bool else torch.int32
    empty = like.new_empty(like.shape)
    kwargs = {**fill.kwargs, "dtype": dtype}
    zeros = add(empty.to(dtype), aten.full.default, sizes, zero, **kwargs)
    value: Any = fill.args[-1]
    if like.dtype == torch.bool:
        return add(empty, aten.eq.Scalar if value else aten.ne.Scalar, zeros, 0)
    return add(empty, aten.add.Scalar, zeros, value) if value else zeros


# Ops that gather from their first argument.
_READS = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.gather.default,
    aten.index_select.default,
    aten.embedding.default,
}


# Views of a part of a tensor.
_PARTS = {aten.select.int, aten.slice.Tensor}


def copy_parts(graph: fx.Graph) -> None:
    """Copy slices of dynamic size before gathers from them: IREE 3.13 reads some at index 0.

    Results of scatters are copied before they are padded: fused, the two do not compile.
    """
    for node in list(graph.nodes):
        if _reads_a_part(node) or _pads_a_write(node):
            source: Any = node.args[0]
            with graph.inserting_before(node):
                copy = _copy(graph, node, source, is_written=False)
                node.args = (copy, *node.args[1:])


def _reads_a_part(node: fx.Node) -> bool:
    return node.target in _READS and _needs_copy(node.args[0])  # type: ignore[arg-type]


def _pads_a_write(node: fx.Node) -> bool:
    if node.target is not aten.constant_pad_nd.default:
        return False
    *_, written = _views_to(node.args[0])  # type: ignore[arg-type]
    return written.target in IN_PLACE


def _needs_copy(node: fx.Node) -> bool:
    """Whether a gather copies its operand: one that is padded, or a written or dynamic slice."""
    *views, source = _views_to(node)
    if source.target is aten.constant_pad_nd.default:  # fused, the two do not compile
        return True
    parts = [one for one in views if one.target in _PARTS]
    if parts and source.target in IN_PLACE:  # as above
        return True
    values = [one.meta["val"] for part in parts for one in (part, part.all_input_nodes[0])]
    return not all(map(is_static, values))


def _overwritten_operands(node: fx.Node) -> list[fx.Node]:
    """The operands whose memory a node's result may share."""
    if node.op != "call_function":
        return []
    if node.target in IN_PLACE:
        return [node.args[0]]  # type: ignore[list-item]
    if not isinstance(node.target, torch._ops.OpOverload) or not may_overwrite(node.target.name()):
        return []
    operands = node.all_input_nodes
    return [one for one in operands if isinstance(one.meta.get("val"), torch.Tensor)]


def _may_share_memory(node: fx.Node, names: set[str]) -> bool:
    """Whether a value can share an argument's memory: every value between the two has its size.

    Sizes are compared at the example's values: 6 * (n // 3) elements may be all of 2 * n.
    """
    pending, seen = [node], {node}
    while pending:
        one = pending.pop()
        if one.op == "placeholder" and one.name in names:
            return True
        sources = one.all_input_nodes
        # A branch or a loop may return its operands, or copies that the compiler drops.
        candidates = {n for n in sources if is_control_flow(n) or _size(n) == _size(node)} - seen
        seen |= candidates
        pending += candidates
    return False


def _size(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return (count_elements(value), value.dtype) if isinstance(value, torch.Tensor) else None


def _copy(
    graph: fx.Graph, beside: fx.Node, operand: fx.Node, *, is_written: bool = True
) -> fx.Node:
    """A copy by an identity that the compiler cannot fold.

    Copies to write to and copies to read are different ops, since the compiler merges equal ones.
    """
    add = partial(emit, graph, beside=beside)
    dtype = operand.meta["val"].dtype
    if dtype.is_floating_point or dtype.is_complex:
        nan = math.copysign(math.nan, 1 if is_written else -1)
        return add(aten.where.ScalarSelf, add(aten.ne.Tensor, operand, operand), nan, operand)
    if dtype in (torch.bool, torch.uint8):
        wide = add(aten._to_copy.default, operand, dtype=torch.int32)
        copy = _copy(graph, beside, wide, is_written=is_written)
        return add(aten._to_copy.default, copy, dtype=dtype)
    size = add(aten.abs.default, operand)
    positive = add(aten.ge.Scalar, operand, 0 if is_written else 1)
    zero = add(aten.sub.Tensor, size, size)  # the compiler negates floats only
    return add(aten.where.self, positive, size, add(aten.sub.Tensor, zero, size))
