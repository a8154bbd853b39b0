"""Find results that are new values of inputs, computed element by element.

The step of an optimizer computes new weights and averages from old ones. Written to their own
memory, these results need no other memory and no copy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from turbine.capture.effects import FILLS, Mutation, writes
from turbine.capture.nodes import emit
from turbine.capture.partition import is_free
from turbine.capture.sizes import is_static

# Results of smaller tensors, and copies of them, stay in the caches.
LEAST_BYTES = 1 << 21


@dataclass(frozen=True)
class Update:
    """New values of inputs that have one shape, as a formula of tensors and of single numbers."""

    written: dict[fx.Node, fx.Node]  # the placeholder and its new value
    formula: tuple[fx.Node, ...]  # the ops, in order
    tensors: tuple[fx.Node, ...]  # the operands with this shape that are only read
    numbers: tuple[fx.Node, ...]  # the operands with one element

    @property
    def operands(self) -> tuple[fx.Node, ...]:
        """Written tensors, tensors and numbers."""
        return (*self.written, *self.tensors, *self.numbers)


@dataclass(frozen=True)
class _Slice:
    """What a new value is computed from."""

    ops: AbstractSet[fx.Node]
    operands: AbstractSet[fx.Node]


def find_updates(
    graph: fx.Graph,
    results: Mapping[fx.Node, fx.Node],
    is_known: Callable[[fx.Node], bool],
    *,
    is_functional: bool = False,
) -> list[Update]:
    """The updates of a graph; `results` has the new value of each placeholder that has one.

    `is_known` says whether an op may be part of a formula. In a functional graph an update gives
    new values and writes nothing, so its operands may have any layout: they are copied.
    """
    (output,) = graph.find_nodes(op="output")
    returned = Counter(root for node in _leaves(output) for root in _roots(node))
    large = {
        old: new
        for old, new in results.items()
        if _is_large(old) and not returned[old] and returned[new] == 1
    }
    slices = {old: _slice(old, new, is_known, is_functional) for old, new in large.items()}
    found = {old: one for old, one in slices.items() if one is not None}
    # A view of a written tensor could be read after the write.
    found = {old: one for old, one in found.items() if not _views(one) & found.keys()}
    order = {node: index for index, node in enumerate(graph.nodes)}
    return [_update(group, large, found, order) for group in _group(found)]


def _leaves(output: fx.Node) -> list[fx.Node]:
    return [node for node in tree_leaves(output.args) if isinstance(node, fx.Node)]


def _is_large(node: fx.Node) -> bool:
    value = node.meta["val"]
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.dtype == torch.float32
        and is_static(value)
        # Not nbytes, which a tensor refuses whose sizes were dynamic before a guard.
        and math.prod(value.shape) * value.itemsize >= LEAST_BYTES
        and value.is_contiguous()
    )


def _slice(
    old: fx.Node, new: fx.Node, is_known: Callable[[fx.Node], bool], is_functional: bool
) -> _Slice | None:
    """The ops of the placeholder's shape that compute its new value; None if others do."""
    shape = old.meta["val"].shape
    ops: set[fx.Node] = set()
    operands: set[fx.Node] = set()
    pending = [new]
    while pending:
        node = pending.pop()
        if node in ops or node in operands:
            continue
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not is_static(value):
            return None
        if is_known(node) and (value.shape == shape or _is_number(node)):
            ops.add(node)
            pending.extend(node.all_input_nodes)
        elif _is_operand(value, shape, is_functional):
            operands.add(node)
        else:
            return None
    return _Slice(ops, operands) if new in ops else None


def _is_number(node: fx.Node) -> bool:
    """Whether a node is a constant number."""
    return node.target in FILLS and node.meta["val"].dim() == 0


def _is_operand(value: torch.Tensor, shape: torch.Size, is_functional: bool) -> bool:
    if value.device.type != "cpu":
        return False
    if value.numel() == 1:
        return value.dtype in (torch.float32, torch.bool)
    is_plain = is_functional or value.is_contiguous()
    return value.dtype == torch.float32 and value.shape == shape and is_plain


def _views(one: _Slice) -> set[fx.Node]:
    """The tensors that operands are views of."""
    return {root for node in one.operands for root in _roots(node) - {node}}


def _roots(node: fx.Node) -> set[fx.Node]:
    """The tensors that a value may share memory with."""
    if not is_free(node):
        return {node}
    return {root for operand in node.all_input_nodes for root in _roots(operand)} or {node}


def _group(slices: Mapping[fx.Node, _Slice]) -> list[list[fx.Node]]:
    """Group the placeholders: one that another's new value is computed from is in its group."""
    group_of = {old: [old] for old in slices}
    for old, one in slices.items():
        for operand in one.operands & slices.keys():
            own, other = group_of[old], group_of[operand]
            if own is not other:
                own.extend(other)
                group_of.update(dict.fromkeys(other, own))
    return [group for old, group in group_of.items() if group[0] is old]


def _update(
    group: list[fx.Node],
    results: Mapping[fx.Node, fx.Node],
    slices: Mapping[fx.Node, _Slice],
    order: Mapping[fx.Node, int],
) -> Update:
    def in_order(nodes: set[fx.Node]) -> tuple[fx.Node, ...]:
        return tuple(sorted(nodes, key=order.__getitem__))

    ops = in_order({node for old in group for node in slices[old].ops})
    operands = in_order({node for old in group for node in slices[old].operands} - {*group})
    shape = group[0].meta["val"].shape
    return Update(
        {old: results[old] for old in in_order({*group})},
        ops,
        tuple(node for node in operands if node.meta["val"].shape == shape),
        tuple(node for node in operands if node.meta["val"].shape != shape),
    )


def rewrite(graph: fx.GraphModule, update: Update, mutation: Mutation) -> None:
    """Call a function on written tensors, tensors and numbers, each flat, at the end of a graph.

    The written tensors take the place of their new values among the results. The ops of the
    formula stay until `drop_unused` removes them.
    """
    (output,) = graph.graph.find_nodes(op="output")
    with graph.graph.inserting_before(output):
        flat = [flatten(node) for node in update.operands]
        graph.graph.call_function(mutation, tuple(flat))
    new = {value: old for old, value in update.written.items()}
    output.args = (tuple(new.get(node, node) for node in output.args[0]),)


def drop_unused(graph: fx.GraphModule) -> None:
    """Remove ops whose values nobody reads, but not calls that write."""
    graph.graph.eliminate_dead_code(lambda node: writes(node) or node.is_impure())


def flatten(node: fx.Node) -> fx.Node:
    """A tensor as one axis."""
    aten, plain = torch.ops.aten, torch.contiguous_format
    if not node.meta["val"].is_contiguous():
        node = emit(node.graph, aten.clone.default, node, memory_format=plain, beside=node)
    # What PyTorch computes may be laid out differently than its meta kernels say.
    op = aten.view.default if node.op == "placeholder" else aten.reshape.default
    return emit(node.graph, op, node, [-1], beside=node)
