"""Keep ops that work in place off the caller's tensors, and off each other's.

IREE 3.13 lets a scatter or a sort overwrite an argument whose value nobody reads afterwards, so
that `x.index_put(...)` or `x.topk(2)` would change x. Each such op gets a value computed from its
operand instead; the compiler fuses that with whatever makes the operand. So does one whose operand
is read elsewhere: the compiler may write to it before it is read.

It also lets several of them work in one fill of a dynamic size: in a backward graph, two slices of
one tensor scatter their gradients to the same zeros. Each gets a fill that differs in its code.
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

from turbine.capture.declared_ops import may_overwrite
from turbine.capture.effects import FILLS
from turbine.capture.nodes import emit
from turbine.capture.sizes import count_elements, is_static

aten = torch.ops.aten

# Ops whose result is made in the memory of their first argument.
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
    """Run all passes; fills come first, for a copy of a fill is not a fill any more."""
    separate_fills(graph)
    copy_parts(graph)
    keep_arguments(graph, arguments)


def keep_arguments(graph: fx.Graph, arguments: Iterable[str]) -> None:
    """Give every op that works in place a copy of what is an argument or is read elsewhere."""
    names = set(arguments)
    for node in list(graph.nodes):
        for operand in _at_risk(node):
            if _may_be(operand, names) or _is_read_elsewhere(operand):
                with graph.inserting_before(node):
                    node.replace_input_with(operand, _copy(graph, node, operand))


def separate_fills(graph: fx.Graph) -> None:
    """Give every op that works in place a fill of its own, where sizes are dynamic.

    The compiler merges equal fills, also those of other shapes with as many elements.
    """
    numbers = count(1)
    has_several = sum(node.target in FILLS for node in graph.nodes) > 1
    for writer in [node for node in graph.nodes if node.target in IN_PLACE]:
        filled: Any = writer.args[0]
        *_, fill = _views_to(filled)
        is_shared = has_several or _is_read_elsewhere(filled)
        if fill.target in FILLS and is_shared and not is_static(filled.meta["val"]):
            with graph.inserting_before(writer):
                own = _fill_of_its_own(graph, filled, fill, next(numbers))
            # The first operand only: a source may be the same fill.
            writer.args = (own, *writer.args[1:])


def _is_read_elsewhere(node: fx.Node) -> bool:
    """Whether a value, or one that it is a view of, has another user: `v[2:5] = 2 * v[0:3]`."""
    return any(len(one.users) > 1 for one in _views_to(node))


def _views_to(node: fx.Node) -> Iterator[fx.Node]:
    """A value, what it is a view of, and so on; the compiler drops clones."""
    yield node
    while isinstance(node.target, torch._ops.OpOverload) and (
        node.target.is_view or node.target is aten.clone.default
    ):
        node = node.all_input_nodes[0]
        yield node


def _fill_of_its_own(graph: fx.Graph, filled: fx.Node, fill: fx.Node, number: int) -> fx.Node:
    """The same values plus a zero that the compiler cannot fold.

    `size // (size + number)` is zero for every size, and another expression for each fill, so that
    equal ones are not merged.
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


# Ops that read their first argument at indices.
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
    """Read parts of tensors of dynamic sizes by a copy: IREE 3.13 reads some at index 0.

    What a scatter has written is padded by a copy: in one loop the two do not compile.
    """
    for node in list(graph.nodes):
        if _reads_a_part(node) or _pads_a_write(node):
            source: Any = node.args[0]
            with graph.inserting_before(node):
                copy = _copy(graph, node, source, is_written=False)
                node.args = (copy, *node.args[1:])


def _reads_a_part(node: fx.Node) -> bool:
    return node.target in _READS and _is_read_by_copy(node.args[0])  # type: ignore[arg-type]


def _pads_a_write(node: fx.Node) -> bool:
    if node.target is not aten.constant_pad_nd.default:
        return False
    *_, written = _views_to(node.args[0])  # type: ignore[arg-type]
    return written.target in IN_PLACE


def _is_read_by_copy(node: fx.Node) -> bool:
    """Whether it is of a padded tensor, or a part of one that is written or of dynamic size."""
    *views, source = _views_to(node)
    if source.target is aten.constant_pad_nd.default:  # in one loop the two do not compile
        return True
    parts = [one for one in views if one.target in _PARTS]
    if parts and source.target in IN_PLACE:  # as above
        return True
    values = [one.meta["val"] for part in parts for one in (part, part.all_input_nodes[0])]
    return not all(map(is_static, values))


def _at_risk(node: fx.Node) -> list[fx.Node]:
    """The operands in whose memory a node's result may be made."""
    if node.op != "call_function":
        return []
    if node.target in IN_PLACE:
        return [node.args[0]]  # type: ignore[list-item]
    if not isinstance(node.target, torch._ops.OpOverload) or not may_overwrite(node.target.name()):
        return []
    operands = node.all_input_nodes
    return [one for one in operands if isinstance(one.meta.get("val"), torch.Tensor)]


def _may_be(node: fx.Node, names: set[str]) -> bool:
    """Whether the value can share an argument's memory: all on the way to it has its size.

    Sizes are compared at the example's values, for 6 * (n // 3) may be all of 2 * n elements.
    """
    pending, seen = [node], {node}
    while pending:
        one = pending.pop()
        if one.op == "placeholder" and one.name in names:
            return True
        alike = {n for n in one.all_input_nodes if _size(n) == _size(node)} - seen
        seen |= alike
        pending += alike
    return False


def _size(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return (count_elements(value), value.dtype) if isinstance(value, torch.Tensor) else None


def _copy(
    graph: fx.Graph, beside: fx.Node, operand: fx.Node, *, is_written: bool = True
) -> fx.Node:
    """The same values by an identity that the compiler does not see through.

    Copies that are written and copies that are read differ: the compiler merges equal ones.
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
