"""Find constants and users of nodes, and give operands and results the axes of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx

from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.rounding import widened_from
from turbine.capture.sizes import expression

aten = torch.ops.aten


@dataclass(frozen=True)
class MatmulNode:
    """A matmul of matrices or of batches of them, with a bias or without."""

    node: fx.Node

    @property
    def operands(self) -> tuple[fx.Node, fx.Node]:
        """The left operand and the right one."""
        x, y = self.node.args[-2:]
        assert isinstance(x, fx.Node)
        assert isinstance(y, fx.Node)
        return x, y

    @property
    def bias(self) -> fx.Node | None:
        """The bias, if there is one."""
        first = self.node.args[0]
        assert isinstance(first, fx.Node)
        return first if self.node.target is aten.addmm.default else None

    @property
    def has_row(self) -> bool:
        """Whether a bias, if there is one, is a row."""
        columns = self.operands[1].meta["val"].shape[1:]
        return self.bias is None or self.bias.meta["val"].shape == columns


_MATMULS = (aten.mm.default, aten.addmm.default, aten.bmm.default)


def find_matmuls(region: Region) -> Iterator[fx.Node]:
    """Find matmuls of matrices and of batches, in order. An addmm may scale its operands."""
    for node in region.graph.graph.nodes:
        if node.target in _MATMULS and not node.kwargs:
            yield node


@dataclass(frozen=True)
class Factor:
    """An operand of a matmul: a matrix or a batch of them, or their transposes."""

    matrix: fx.Node
    is_transposed: bool

    @property
    def shape(self) -> Sequence[int | torch.SymInt]:
        """Its sizes."""
        *leading, rows, columns = self.matrix.meta["val"].shape
        return [*leading, columns, rows] if self.is_transposed else [*leading, rows, columns]

    def transposed(self) -> Factor:
        """Its transpose."""
        return Factor(self.matrix, not self.is_transposed)


def factor_of(node: fx.Node) -> Factor:
    """An operand, without the transposes of its last axes."""
    if not is_transpose(node):
        return Factor(node, is_transposed=False)
    return factor_of(node.all_input_nodes[0]).transposed()


def skip_views(node: fx.Node) -> fx.Node:
    """What views that keep the shape show; `torch.matmul` adds some."""
    while node.target in (aten.view.default, aten.expand.default):
        source = node.all_input_nodes[0]
        if not have_equal_sizes(source.meta["val"].shape, node.meta["val"].shape):
            break
        node = source
    return node


def is_transpose(node: fx.Node | None) -> TypeGuard[fx.Node]:
    """Whether a node swaps its last two axes."""
    if node is None or node.target is not aten.permute.default:
        return False
    axes: Any = node.args[1]
    return [*axes] == _swapped_axes(len(axes))


def transpose(node: fx.Node) -> fx.Node:
    """Swap the last two axes. Of two transposes nothing is left."""
    axes = _swapped_axes(node.meta["val"].dim())
    return emit(node.graph, aten.permute.default, node, axes, beside=node)


def _swapped_axes(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def constant_nodes(region: Region) -> set[fx.Node]:
    """Nodes that depend on weights only, computed once when an artifact is loaded."""
    fixed = {name for name, weight in region.weights.items() if not weight.mutable}
    constant: set[fx.Node] = set()
    for node in region.graph.graph.nodes:
        if node.op == "placeholder":
            is_constant = node.name in fixed
        else:
            inputs = node.all_input_nodes
            is_constant = bool(inputs) and all(one in constant for one in inputs)
        if is_constant:
            constant.add(node)
    return constant


def have_equal_sizes(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Whether two shapes are the same at every call."""
    return [*map(expression, one)] == [*map(expression, other)]


def has_one_dynamic_size(node: fx.Node) -> bool:
    """Whether at most one size of a node is dynamic, so that a view can infer it."""
    return sum(not isinstance(size, int) for size in node.meta["val"].shape) <= 1


def only_user(node: fx.Node) -> fx.Node | None:
    """The user of a node, if it is the only one."""
    users = [*node.users]
    return users[0] if len(users) == 1 else None


def is_conversion(node: fx.Node | None) -> TypeGuard[fx.Node]:
    """Whether a node changes the dtype alone."""
    if node is None or node.target is not aten._to_copy.default or "dtype" not in node.kwargs:
        return False
    is_dense = node.kwargs.get("layout") in (None, torch.strided)
    return is_dense and {*node.kwargs} <= {"dtype", "layout", "device", "pin_memory"}


def convert(node: fx.Node, dtype: torch.dtype, beside: fx.Node) -> fx.Node:
    """A node as another dtype."""
    if node.meta["val"].dtype == dtype:
        return node
    return emit(beside.graph, aten._to_copy.default, node, dtype=dtype, beside=beside)


def narrow_ends(x: fx.Node, y: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What is converted to `x`, and to what `y` is converted, if both are of one 16-bit dtype."""
    source, end = widened_from(x), only_user(y)
    if source is None or not is_conversion(end):
        return None
    return (source, end) if source.meta["val"].dtype == end.meta["val"].dtype else None


def to_rank(node: fx.Node, rank: int, beside: fx.Node) -> fx.Node:
    """Add leading axes of size 1, or merge the first axes, which are static then."""
    shape = node.meta["val"].shape
    for _ in range(rank - len(shape)):
        node = emit(beside.graph, aten.unsqueeze.default, node, 0, beside=beside)
    if len(shape) <= rank:
        return node
    merged = len(shape) - rank + 1
    sizes = [math.prod(shape[:merged]), *shape[merged:]]
    return emit(beside.graph, aten.view.default, node, sizes, beside=beside)


def restore_shape(node: fx.Node, beside: fx.Node) -> fx.Node:
    """Undo `to_rank`: give a node the shape of another."""
    shape, rank = beside.meta["val"].shape, node.meta["val"].ndim
    for _ in range(rank - len(shape)):
        node = emit(beside.graph, aten.squeeze.dim, node, 0, beside=beside)
    if len(shape) <= rank:
        return node
    return emit(beside.graph, aten.view.default, node, [*shape], beside=beside)
