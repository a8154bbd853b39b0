"""Find values that one op reads at two indices at once, such as `s` in `s[:, None] * s[None, :]`.

IREE 3.13 fuses a reduction with an op that reads its result, and considers only one of the reads.
The other read then sees elements that are not computed yet. The two reads may be of two nodes: the
compiler merges equal values, so values are kept apart by what they depend on, not by their nodes.
"""

from __future__ import annotations

from functools import reduce
from itertools import dropwhile
from operator import or_
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from turbine.capture.effects import FILLS, RESHAPES, is_ordered, is_pointwise
from turbine.capture.sizes import count_elements, expression

aten = torch.ops.aten

# Ops that only change indices; the compiler folds them into the loops around them.
_VIEWS = RESHAPES | {
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.diagonal.default,
    aten.expand.default,
}
# Ops whose result depends only on the sizes of their operands.
_SIZES = FILLS | {aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int}

UNFUSED = "unfused"  # in `node.meta`: a value that must not be fused with its users

# The views between a computed value and an op that reads its elements, each an op and its result;
# first comes a reshape to the shape that the value has.
Path = tuple[tuple[Any, Any], ...]
_RESHAPE = aten.reshape.default
Paths = dict["Group", set[Path]]


class Group(NamedTuple):
    """Values that the compiler may merge; besides equal ones, the sums of a mean and a variance."""

    sources: int  # the nodes that they depend on, as bits
    depth: int  # how many ops that compute, and are not pointwise, lead to them
    elements: int


def mark_crossed_reads(graph: fx.Graph) -> None:
    """Mark the values that must not be fused with their users."""
    for node in find_crossed_reads(graph):
        node.meta[UNFUSED] = True


def find_crossed_reads(graph: fx.Graph) -> set[fx.Node]:
    """The computed values that some op reads through several paths."""
    groups: dict[fx.Node, Group] = {}
    members: dict[Group, list[fx.Node]] = {}
    paths: dict[fx.Node, Paths] = {}
    crossed: set[Group] = set()
    for number, node in enumerate(graph.nodes):
        group = groups[node] = _group(node, number, groups)
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor):
            continue
        if node.target in _VIEWS:
            paths[node] = _extend(paths.get(node.args[0], {}), node)
        elif is_pointwise(node.target):
            merged = _merge([paths[x] for x in node.all_input_nodes if x in paths])
            crossed.update(group for group, found in merged.items() if len(found) > 1)
            # Stop at the first crossing: the number of paths doubles with each.
            paths[node] = {group: merged[group] for group in merged.keys() - crossed}
        elif node.all_input_nodes and not statically_known_true(value.numel() == 1):
            members.setdefault(group, []).append(node)
            paths[node] = {group: {((_RESHAPE, _shape(node)),)}}
    return {node for group in crossed for node in members[group]}


def _group(node: fx.Node, number: int, groups: dict[fx.Node, Group]) -> Group:
    """The group of a node; inputs, and ops that keep their place, are sources."""
    value = node.meta.get("val")
    elements = count_elements(value) if isinstance(value, torch.Tensor) else 1
    if node.op != "call_function" or is_ordered(node):
        return Group(1 << number, 0, elements)
    if node.target in _SIZES:
        return Group(0, 0, elements)
    operands = [groups[operand] for operand in node.all_input_nodes]
    sources = reduce(or_, [one.sources for one in operands], 0)
    depth = max([one.depth for one in operands], default=0)
    computes = node.target not in _VIEWS and not is_pointwise(node.target)
    return Group(sources, depth + computes, elements)


def _extend(paths: Paths, view: fx.Node) -> Paths:
    """The paths with one view more."""
    return {group: {_follow(path, view) for path in found} for group, found in paths.items()}


def _follow(path: Path, view: fx.Node) -> Path:
    """A path with one view more; a reshape of a reshape is one reshape."""
    if view.target in RESHAPES:
        kept = path[:-1] if path[-1][0] is _RESHAPE else path
        return (*kept, (_RESHAPE, _shape(view)))
    if view.target is aten.expand.default:
        return (*path, (view.target, _shape(view)))
    return (*path, (view.target, str(view.args[1:])))


def _shape(node: fx.Node) -> tuple[Any, ...]:
    """A shape without the ones in front, to which it is broadcast."""
    sizes = map(expression, node.meta["val"].shape)
    return tuple(dropwhile(lambda size: size == 1, sizes))


def _merge(operands: list[Paths]) -> Paths:
    merged: Paths = {}
    for paths in operands:
        for group, found in paths.items():
            merged.setdefault(group, set()).update(found)
    return merged
