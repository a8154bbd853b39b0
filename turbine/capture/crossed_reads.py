"""Find values that one op reads at two indices at once, such as `s` in `s[:, None] * s[None, :]`.

IREE 3.13 fuses a reduction with an op that reads its result, and considers only one of the reads.
The other read then sees elements that are not computed yet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from turbine.capture.effects import is_ordered, is_pointwise

aten = torch.ops.aten

# Ops that only change indices; the compiler folds them into the loops around them.
_VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
}

UNFUSED = "unfused"  # in `node.meta`: a value that must not be fused with its users

# The views between a computed value and an op that reads its elements.
Path = tuple[Any, ...]
# Values that the compiler may merge, keyed by their operands: it merges equal ops, and computes a
# mean and a variance from the same sums.
Group = tuple[Any, ...]
Paths = dict[Group, set[Path]]


def mark_crossed_reads(graph: fx.Graph) -> None:
    """Mark the values that must not be fused with their users."""
    for node in find_crossed_reads(graph):
        node.meta[UNFUSED] = True


def find_crossed_reads(graph: fx.Graph) -> set[fx.Node]:
    """The computed values that some op reads through several paths."""
    numbers: dict[fx.Node, int] = {}
    known: dict[Any, int] = {}
    members: dict[Group, list[fx.Node]] = {}
    paths: dict[fx.Node, Paths] = {}
    crossed: set[Group] = set()
    for node in graph.nodes:
        numbers[node] = _number(node, numbers, known)
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if node.target in _VIEWS:
            paths[node] = _extend(paths.get(node.args[0], {}), _step(node, numbers))
        elif is_pointwise(node.target):
            merged = _merge([paths[x] for x in node.all_input_nodes if x in paths])
            crossed.update(group for group, found in merged.items() if len(found) > 1)
            # Stop at the first crossing: the number of paths doubles with each.
            paths[node] = {group: merged[group] for group in merged.keys() - crossed}
        elif node.all_input_nodes and not statically_known_true(node.meta["val"].numel() == 1):
            group = tuple(numbers[x] for x in node.all_input_nodes)
            members.setdefault(group, []).append(node)
            paths[node] = {group: {()}}
    return {node for group in crossed for node in members[group]}


def _number(node: fx.Node, numbers: dict[fx.Node, int], known: dict[Any, int]) -> int:
    """A value number: equal for nodes that compute the same value."""
    if node.op != "call_function" or is_ordered(node):
        return known.setdefault(node, len(known))
    key = (node.target, _freeze((node.args, node.kwargs), numbers))
    return known.setdefault(key, len(known))


def _freeze(argument: Any, numbers: dict[fx.Node, int]) -> Any:
    """An argument as a hashable key."""
    if isinstance(argument, fx.Node):
        return "node", numbers[argument]
    if isinstance(argument, (list, tuple)):
        return tuple(_freeze(one, numbers) for one in argument)
    if isinstance(argument, dict):
        return tuple((name, _freeze(one, numbers)) for name, one in argument.items())
    return type(argument), str(argument)


def _step(view: fx.Node, numbers: dict[fx.Node, int]) -> Any:
    """A view op as a key, without the operand."""
    return view.target, _freeze(view.args[1:], numbers)


def _extend(paths: Paths, step: Any) -> Paths:
    return {group: {(*path, step) for path in found} for group, found in paths.items()}


def _merge(operands: list[Paths]) -> Paths:
    merged: Paths = {}
    for paths in operands:
        for group, found in paths.items():
            merged.setdefault(group, set()).update(found)
    return merged
