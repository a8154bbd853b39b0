"""Join several indices of dynamic size into one: the compiler rejects such reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from turbine.capture.nodes import emit, value_of
from turbine.capture.sizes import is_static, multiply, sizes_of

aten = torch.ops.aten


def join_indices(graph: fx.Graph) -> None:
    """Rewrite x[i, j] as a read of the flattened axes at i * size + j; indices are not negative."""
    for node in graph.nodes:
        if node.target is aten.index.Tensor:
            chosen = {axis: index for axis, index in enumerate(node.args[1]) if index is not None}
            if len(chosen) > 1 and not all(is_static(value_of(i)) for i in chosen.values()):
                with graph.inserting_before(node):
                    _join(graph, node, chosen)


def _join(graph: fx.Graph, node: fx.Node, chosen: dict[int, fx.Node]) -> None:
    source: Any = node.args[0]
    axes = list(chosen)
    if (
        axes[-1] - axes[0] != len(axes) - 1
    ):  # not adjacent: PyTorch puts the axes of the indices first
        order = [*axes, *(axis for axis in range(value_of(source).dim()) if axis not in chosen)]
        source = emit(graph, aten.permute.default, source, order, beside=node)
        axes = list(range(len(axes)))
    sizes = sizes_of(graph, source, axes)
    joined, *others = chosen.values()
    for index, size in zip(others, sizes[1:], strict=True):
        scaled = emit(graph, aten.mul.Scalar, joined, size, beside=node)
        joined = emit(graph, aten.add.Tensor, scaled, index, beside=node)
    flat = _flatten(graph, source, axes, sizes)
    node.args = (flat, [*[None] * axes[0], joined])


def _flatten(
    graph: fx.Graph, source: Any, axes: Sequence[int], sizes: Sequence[int | fx.Node]
) -> fx.Node:
    """Merge adjacent axes of these sizes."""
    ahead = sizes_of(graph, source, range(axes[0]))
    behind = sizes_of(graph, source, range(axes[-1] + 1, value_of(source).dim()))
    shape = [*ahead, multiply(graph, sizes), *behind]
    flat = graph.call_function(aten.view.default, (source, shape))
    # Values have no strides in IR, so merging axes is always a view.
    flat.meta["val"] = value_of(source).new_empty([value_of(size) for size in shape])
    return flat
