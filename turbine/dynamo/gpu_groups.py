"""Find the groups of ops in a graph that one generated kernel computes.

An op joins the group of one of its operands if both have the same space, and no op outside of the
group is between them. Groups end where ops keep their order, such as random ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from turbine.capture.effects import is_ordered
from turbine.library import fused, fusion_rules
from turbine.library.fused import MOST_COLUMNS, Space

aten = torch.ops.aten
# Of one kernel: more need too many registers, and long to compile.
_MOST_OPS, _MOST_TENSORS = 48, 24
# Shorter rows do not fill a warp.
_LEAST_COLUMNS = 32


@dataclass(eq=False)
class Group:
    """Ops that one kernel computes."""

    space: Space
    epoch: int  # how many ordered ops come before it
    nodes: list[fx.Node] = field(default_factory=list)

    @property
    def ops(self) -> list[fx.Node]:
        """The nodes that compute."""
        free = fused.REPEATS
        return [n for n in self.nodes if n.target not in free and not fused.is_item(n)]

    @property
    def has_rows(self) -> bool:
        """Whether it reduces rows."""
        return any(node.target in fusion_rules.OF_ROWS for node in self.nodes)

    @property
    def last_op(self) -> fx.Node:
        """The last node that computes."""
        return self.ops[-1]

    @property
    def is_worth_a_kernel(self) -> bool:
        """Whether a kernel may be faster than PyTorch's ops."""
        ops = self.ops
        return len(ops) > 1 or any(node.target in fusion_rules.ALONE for node in ops)

    def outputs(self) -> list[fx.Node]:
        """The values that others read."""
        inside = set(self.nodes)
        return [n for n in self.nodes if _is_tensor(n) and any(u not in inside for u in n.users)]


def find_groups(graph: fx.Graph, device: str = "cuda") -> list[Group]:
    """The groups of a graph that are worth a kernel, for tensors of a kind of device."""
    search = _Search(graph, device)
    for node in graph.nodes:
        search.add(node)
    return [group for group in search.groups if group.is_worth_a_kernel]


class _Search:
    def __init__(self, graph: fx.Graph, device: str) -> None:
        self.device = device
        self.place = {node: place for place, node in enumerate(graph.nodes)}
        self.of: dict[fx.Node, Group] = {}
        self.epoch = 0

    @property
    def groups(self) -> list[Group]:
        return list(dict.fromkeys(self.of.values()))

    def add(self, node: fx.Node) -> None:
        """Put a node in a group of its operands, or in a new one."""
        if node.op != "call_function":
            return
        if is_ordered(node):
            self.epoch += 1
            return
        if fused.is_item(node):
            group = self.of.get(node.all_input_nodes[0])
            if group is not None:
                self._join(node, group)
            return
        if node.target in fused.REPEATS:
            self._add_repeat(node)
        elif (space := self._space_of(node)) is not None:
            self._add_op(node, space)

    def _add_repeat(self, node: fx.Node) -> None:
        """A node that repeats a row's value stays with it."""
        (source, *_) = node.all_input_nodes
        group = self.of.get(source)
        if group is None or group.epoch != self.epoch or not self._is_readable(source, group):
            return
        if tuple(node.meta["val"].shape) == group.space.shape:
            self._join(node, group)

    def _space_of(self, node: fx.Node) -> Space | None:
        """The space of an op that a kernel can compute, as far as it knows it."""
        if node.target not in fusion_rules.RULES or not fusion_rules.holds(node):
            return None
        operands = [one.meta["val"] for one in node.all_input_nodes if fused.fill_of(one) is None]
        values = node.meta["val"]
        results = list(values) if isinstance(values, (tuple, list)) else [values]
        if not operands or not all(map(self._is_plain, [*operands, *results])):
            return None
        orders = [fused.order_of(value) for value in results]
        if node.target not in fusion_rules.OF_ROWS:
            return None if orders[0] is None else Space(tuple(results[0].shape), orders[0])
        whole = tuple(node.all_input_nodes[0].meta["val"].shape)
        plain = tuple(range(len(whole)))
        if not fusion_rules.reduces_rows(node) or any(
            order != tuple(range(value.dim())) for order, value in zip(orders, results, strict=True)
        ):
            return None
        is_long = _LEAST_COLUMNS <= whole[-1] <= MOST_COLUMNS
        return Space(whole, plain) if is_long else None

    def _is_plain(self, value: object) -> bool:
        """Whether a kernel can read or write a tensor."""
        return (
            isinstance(value, Tensor)
            and value.device.type == self.device
            and value.layout is torch.strided
            and all(type(size) is int and size > 0 for size in value.shape)
            and all(type(step) is int for step in value.stride())
            and not value.is_conj()
            and not value.is_neg()
        )

    def _add_op(self, node: fx.Node, space: Space) -> None:
        fits = [group for group in self._groups_of(node) if self._fits(node, space, group)]
        if not fits:
            self._join(node, Group(space, self.epoch))
            return
        group, *others = fits
        self._join(node, group)
        for other in others:
            self._merge(group, other)

    def _groups_of(self, node: fx.Node) -> list[Group]:
        """The groups of its operands, the latest first."""
        found = [self.of[one] for one in node.all_input_nodes if one in self.of]
        return sorted(dict.fromkeys(found), key=lambda group: -self._last(group))

    def _fits(self, node: fx.Node, space: Space, group: Group) -> bool:
        if group.epoch != self.epoch or len(group.nodes) >= _MOST_OPS:
            return False
        is_of_rows = node.target in fusion_rules.OF_ROWS
        if space != group.space:
            # A formula of one number a row.
            is_row_value = group.has_rows and not is_of_rows
            if not is_row_value or space.shape != (*group.space.shape[:-1], 1):
                return False
        elif is_of_rows and not group.has_rows:
            is_plain = group.space.order == tuple(range(len(group.space.shape)))
            if not is_plain or not _LEAST_COLUMNS <= group.space.columns <= MOST_COLUMNS:
                return False
        if not all(self._is_readable(one, group) for one in node.all_input_nodes):
            return False
        return len(self._tensors([*group.nodes, node])) <= _MOST_TENSORS

    def _is_readable(self, operand: fx.Node, group: Group) -> bool:
        """Whether an op of a group can read an operand."""
        if fused.fill_of(operand) is not None:
            return True
        value = operand.meta["val"]
        if self.of.get(operand) is group:
            # Others do not broadcast as tiles do.
            return bool(value.dim() == len(group.space.shape))
        return fused.spans(value, group.space) and not self._reaches(group, operand)

    def _tensors(self, nodes: Sequence[fx.Node]) -> set[fx.Node]:
        inside = set(nodes)
        return {one for node in nodes for one in node.all_input_nodes if one not in inside}

    def _join(self, node: fx.Node, group: Group) -> None:
        group.nodes.append(node)
        self.of[node] = group

    def _merge(self, group: Group, other: Group) -> None:
        """Join another group, if no op outside is between the two."""
        if len(group.nodes) + len(other.nodes) > _MOST_OPS or other.space != group.space:
            return
        if other.epoch != group.epoch or self._is_between(group, other):
            return
        nodes = sorted([*group.nodes, *other.nodes], key=self.place.__getitem__)
        if len(self._tensors(nodes)) > _MOST_TENSORS:
            return
        group.nodes = nodes
        self.of.update(dict.fromkeys(other.nodes, group))

    def _is_between(self, one: Group, other: Group) -> bool:
        """Whether an op outside of two groups depends on one and is read by the other."""
        for source, reader in ((one, other), (other, one)):
            outside = [n for n in self._tensors(reader.nodes) if self.of.get(n) is not source]
            if any(self._reaches(source, node) for node in outside):
                return True
        return False

    def _reaches(self, group: Group, node: fx.Node) -> bool:
        """Whether a node, with the group that it is in, depends on a group."""
        first = min(map(self.place.__getitem__, group.nodes))
        seen: set[fx.Node] = set()
        pending = [node]
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            own = self.of.get(one)
            if own is group:
                return True
            if own is not None and self._last(own) > first:
                seen.update(own.nodes)
                pending += self._tensors(own.nodes)
            elif own is None and self.place[one] > first:
                pending += one.all_input_nodes
        return False

    def _last(self, group: Group) -> int:
        return max(map(self.place.__getitem__, group.nodes))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)
