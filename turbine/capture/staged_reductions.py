"""Reduce long axes in stages.

The compiler adds one element after the other, which rounds at every step; PyTorch adds pairwise. A
stage reduces up to `_LONGEST_CHAIN` elements. Along the last axis it keeps neighbours apart, as the
lanes of vectors: the sum of 1024 numbers is that of 64 x 16 along the first axis, and then of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Any

import torch
from torch import fx

from turbine.capture.nodes import emit, value_of
from turbine.capture.reshapes import reshape
from turbine.capture.sizes import is_static

aten = torch.ops.aten

# n sequential additions have up to n rounding errors. After the first stage there is less to add,
# and shorter chains cost little.
_LONGEST_CHAIN, _LATER_CHAIN = 64, 16
# A sum along an axis without chunks of these sizes is computed in f64.
_SHORTEST_CHUNK = 8
_LANES = (16, 8, 4, 1)
_EXTREMES = (aten.amax.default, aten.amin.default)
_TESTS: dict[Any, Any] = {aten.all.default: aten.all.dim, aten.any.default: aten.any.dim}
_TESTED_ROWS = (1024, 512, 256, 128, 64)
_LEAST_TESTED = 1 << 15

# A shape to view the values as, and the axes to reduce.
Stage = tuple[list[int], list[int]]


def stage_reductions(graph: fx.Graph) -> None:
    """Rewrite the long sums, maxima and minima of f32 in a graph, and tests of all elements."""
    for node in list(graph.nodes):
        if node.target in _TESTS:
            _test_rows(node)
        if node.target is aten.sum.dim_IntList or node.target in _EXTREMES:
            x = value_of(node.args[0])
            is_f32 = x.dtype == value_of(node).dtype == torch.float32
            if is_f32 and x.dim() and not _is_short(x, axes := _axes(node)):
                with graph.inserting_before(node):
                    _rewrite(node, axes)


def _test_rows(node: fx.Node) -> None:
    """Test rows first: a loop that gives one element runs on one thread."""
    x: Any = node.args[0]
    value = value_of(x)
    if not is_static(value) or (count := value.numel()) < _LEAST_TESTED:
        return
    columns = next((size for size in _TESTED_ROWS if count % size == 0), None)
    if columns is not None:
        with node.graph.inserting_before(node):
            rows = reshape(x, [count // columns, columns], node)
            node.args = (emit(node.graph, _TESTS[node.target], rows, 1, beside=node),)


def _axes(node: fx.Node) -> list[int]:
    """The axes that a node reduces, in order."""
    rank = value_of(node.args[0]).dim()
    given: Any = node.args[1] if len(node.args) > 1 else ()
    return sorted(axis % rank for axis in given or range(rank))


def _is_short(x: torch.Tensor, axes: Sequence[int]) -> bool:
    count = prod(x.shape[axis] for axis in axes)
    return isinstance(count, int) and count <= _LONGEST_CHAIN


def _rewrite(node: fx.Node, axes: list[int]) -> None:
    x: Any = node.args[0]
    op: Any = node.target
    value = value_of(x)
    stages = plan([*value.shape], axes, merge=value.is_contiguous()) if is_static(value) else None
    if stages is not None:
        for shape, reduced in stages:
            x = emit(node.graph, op, reshape(x, shape, node), reduced, beside=node)
        _become(node, aten.view.default, x, [*value_of(node).shape])
    elif op not in _EXTREMES:
        wide = emit(node.graph, aten._to_copy.default, x, dtype=torch.float64, beside=node)
        total = emit(node.graph, op, wide, *node.args[1:], beside=node)
        _become(node, aten._to_copy.default, total, dtype=torch.float32)


def _become(node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> None:
    """Make a node another call, of the same value: results of the program refer to the node."""
    node.target, node.args, node.kwargs = target, args, kwargs


def plan(shape: list[int], axes: list[int], *, merge: bool) -> list[Stage] | None:
    """The stages that reduce some axes; None if an axis has no chunks.

    With `merge`, neighbouring axes become one.

    >>> from turbine.capture.staged_reductions import plan
    >>> plan([8, 1024], [1], merge=True)
    [([8, 1, 64, 16], [2]), ([8, 16], [1])]
    """
    sizes, left = _merge(shape, axes) if merge else ([*shape], [*axes])
    stages: list[Stage] = []
    for axis in reversed(left):
        while (size := sizes[axis]) > (longest := _longest_chain(stages)):
            lanes, chunk = _split(size, longest, is_last=axis == len(sizes) - 1)
            if chunk is None and size <= _LONGEST_CHAIN:
                break
            if chunk is None:
                return None
            split = [size // (chunk * lanes), chunk, lanes]
            stages.append(([*sizes[:axis], *split, *sizes[axis + 1 :]], [axis + 1]))
            sizes[axis] = size // chunk
    while left:
        taken = [left.pop()]
        longest = _longest_chain(stages)
        while left and prod(sizes[axis] for axis in (left[-1], *taken)) <= longest:
            taken.insert(0, left.pop())
        stages.append(([*sizes], taken))
        for axis in reversed(taken):
            del sizes[axis]
    return stages


def _merge(shape: list[int], axes: list[int]) -> tuple[list[int], list[int]]:
    """The shape with neighbouring axes as one, if all or none of them are reduced."""
    groups = [[*group] for _, group in groupby(range(len(shape)), key=lambda axis: axis in axes)]
    sizes = [prod(shape[axis] for axis in group) for group in groups]
    return sizes, [index for index, group in enumerate(groups) if group[0] in axes]


def _longest_chain(stages: list[Stage]) -> int:
    return _LATER_CHAIN if stages else _LONGEST_CHAIN


def _split(size: int, longest: int, *, is_last: bool) -> tuple[int, int | None]:
    """Lanes that are kept apart, and the largest chunk that a stage can reduce."""
    for lanes in _LANES if is_last else (1,):
        chunks = range(longest, _SHORTEST_CHUNK - 1, -1)
        found = [chunk for chunk in chunks if size % (chunk * lanes) == 0]
        if found:
            return lanes, found[0]
    return 1, None
