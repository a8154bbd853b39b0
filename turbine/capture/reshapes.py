"""Add reshapes, and rewrite those of dynamic sizes, which the compiler gets wrong.

The compiler takes -1 for a number, and a dynamic axis for the same axis after the reshape: [n, 4]
as [-1, 2] reads out of bounds. So every size is computed, and a reshape that merges and splits
axes becomes two.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from turbine.capture.nodes import emit, value_of
from turbine.capture.sizes import expression, multiply, sizes_of

aten = torch.ops.aten
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
Size = int | fx.Node


def reshape(node: fx.Node, shape: Sequence[int], beside: fx.Node) -> fx.Node:
    """A view, also where PyTorch copies: compiled code has no strides."""
    if [*map(expression, value_of(node).shape)] == [*map(expression, shape)]:
        return node
    view = emit(node.graph, aten.reshape.default, node, shape, beside=beside)
    view.target = aten.view.default
    return view


def rewrite_reshapes(graph: fx.Graph) -> None:
    """Rewrite the reshapes of a graph in place."""
    for node in list(graph.nodes):
        if node.target in _RESHAPES and _is_dynamic(node):
            with graph.inserting_before(node):
                _compute_every_size(graph, node)
                _merge_first(graph, node)


def _is_dynamic(node: fx.Node) -> bool:
    sizes = (*_shape(node.args[0]), *_shape(node))
    return not all(isinstance(size, int) for size in sizes)


def _shape(node: Any) -> Any:
    return node.meta["val"].shape


def _compute_every_size(graph: fx.Graph, node: fx.Node) -> None:
    """Replace -1 by the size."""
    source: Any
    wanted: Any
    source, wanted = node.args
    if -1 in wanted:
        left_out = wanted.index(-1)
        size = _shape(node)[left_out]
        if not isinstance(size, int):
            size = _quotient(
                graph,
                sizes_of(graph, source, range(len(_shape(source)))),
                _without(wanted, left_out),
            )
        wanted = [*wanted[:left_out], size, *wanted[left_out + 1 :]]
    node.args = (source, wanted)
    node.meta = _metadata(node, wanted)


def _metadata(node: fx.Node, sizes: Sequence[Size]) -> dict[str, Any]:
    """The metadata of a node with these sizes, which may be numbers where torch has symbols."""
    entries = {**node.meta, "val": node.meta["val"].new_empty(list(map(value_of, sizes)))}
    entries.pop("tensor_meta", None)
    return entries


def _quotient(graph: fx.Graph, sizes: list[Size], divisors: list[Size]) -> Size:
    """The product of sizes over the product of divisors, with common factors cancelled."""
    over: list[Size] = []
    for divisor in divisors:
        wanted = expression(value_of(divisor))
        same = [i for i, size in enumerate(sizes) if expression(value_of(size)) == wanted]
        if same:
            sizes = _without(sizes, same[0])
        else:
            over.append(divisor)
    product, by = multiply(graph, sizes), multiply(graph, over)
    return product if by == 1 else emit(graph, operator.floordiv, product, by)


def _merge_first(graph: fx.Graph, node: fx.Node) -> None:
    """Merge axes in one reshape and split them in another, if several become several."""
    source: Any
    wanted: Any
    source, wanted = node.args
    before, after = _shape(source), _shape(node)
    first = _count_same(before, after)
    last = _count_same(before[first:][::-1], after[first:][::-1])
    if min(len(before), len(after)) - first - last < 2:
        return
    end = len(after) - last
    sizes = [*wanted[:first], multiply(graph, wanted[first:end]), *wanted[end:]]
    target: Any = node.target
    merged = graph.call_function(target, (source, sizes))
    merged.meta = _metadata(node, sizes)
    node.replace_input_with(source, merged)


def _count_same(before: Sequence[Any], after: Sequence[Any]) -> int:
    """The length of the common prefix of two shapes."""
    count = 0
    for one, other in zip(before, after, strict=False):
        if expression(one) != expression(other):
            break
        count += 1
    return count


def _without(sizes: Sequence[Size], index: int) -> list[Size]:
    return [*sizes[:index], *sizes[index + 1 :]]
