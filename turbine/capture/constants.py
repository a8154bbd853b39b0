"""Fold ops on uniform constants with PyTorch's results, before the compiler folds them.

IREE 3.13 folds a constant 3.0 < 0 to true, 3.0 + -2 to 1.8e19, and 3 // -2 to 0. A value that it
folds inside of a reduction, such as x >= x of integers, is reduced once, not once per element.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from turbine.capture.effects import FILLS, draws, is_pointwise
from turbine.capture.nodes import emit
from turbine.capture.sizes import expression, is_static, multiply, sizes_of

aten = torch.ops.aten


def fold_uniform(graph: fx.Graph, *, reads: bool = False) -> None:
    """Replace every op on constants whose result is uniform by a fill, in place.

    With `reads`, only reads by index are replaced, which is valid once indices are checked. Reads
    of uint8 stay: the compiler has no constants of that dtype, and they are widened by then.
    """
    moves = _MOVES | _READS if reads else _MOVES
    with _disable_current_modes():  # under torch.compile, tensors are fake otherwise
        known: dict[fx.Node, torch.Tensor] = {}
        for node in graph.nodes:
            if node.target in _SUMS:
                _fold_sum(node, known)
                continue
            value = known.get(node.args[0]) if node.target in moves else _value(node, known)
            if value is None:
                continue
            known[node] = value
            is_read = node.target in _READS and value.dtype != torch.uint8
            if node.target in FILLS or (reads and not is_read):
                continue
            is_folded = is_static(node.meta["val"]) or _value_of_itself(node) is not None
            if is_folded and math.isfinite(value.item()):
                fill(node, value.item())


_MOVES = {aten.flip.default}
_READS = {
    aten.index.Tensor,
    aten.index_select.default,
    aten.gather.default,
    aten.embedding.default,
}
_SUMS = {aten.sum.default, aten.sum.dim_IntList}


def _fold_sum(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> None:
    """Replace the sum of a uniform integer tensor by value * count."""
    operand: Any = node.args[0]
    total = node.meta["val"]
    if operand not in known or total.is_floating_point() or not _is_plain(total):
        return
    rank = operand.meta["val"].dim()
    axes: Any = node.args[1] if len(node.args) > 1 and node.args[1] else range(rank)
    with node.graph.inserting_before(node):
        sizes = sizes_of(node.graph, operand, sorted({axis % rank for axis in axes}))
        number = multiply(node.graph, [int(known[operand].item()), *sizes])
    if isinstance(number, fx.Node) or abs(number) < 2**63:
        fill(node, number)


def fill(node: fx.Node, number: float | bool | fx.Node) -> None:
    """Change a node to a fill, in place, since a signature may name it.

    Dynamic sizes are read from operands. If no operand has them, or the compiler has no constants
    of the dtype, the node is left as it is.
    """
    value = node.meta["val"]
    if value.dtype not in _FILLED:
        return
    with node.graph.inserting_before(node):
        sizes = [size if isinstance(size, int) else _size(node, size) for size in value.shape]
    if None in sizes:
        return
    node.target, node.args = aten.full.default, (sizes, number)
    node.kwargs = {"dtype": value.dtype, "device": value.device}


# 8-bit integers too: `small_integers` widens them.
_FILLED = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}


def _size(node: fx.Node, size: torch.SymInt) -> fx.Node | None:
    """A node for a dynamic size: an operand, or a read of an operand's size."""
    maker = node.all_input_nodes[0] if node.target is operator.getitem else node
    for operand in maker.all_input_nodes:
        value = operand.meta.get("val")
        if isinstance(value, torch.SymInt) and expression(value) == expression(size):
            return operand
        if not isinstance(value, torch.Tensor):
            continue
        for axis, other in enumerate(value.shape):
            if expression(other) == expression(size):
                return emit(node.graph, aten.sym_size.int, operand, axis)
    return None


def _value(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The value of every element of the result, if it is uniform and known."""
    if node.op != "call_function" or not _is_plain(node.meta.get("val")):
        return None
    if node.target in FILLS:
        number = node.args[-1]
        is_known = isinstance(number, (int, float))
        return torch.tensor(number, dtype=node.meta["val"].dtype) if is_known else None
    of_itself = _value_of_itself(node)
    if of_itself is not None:
        return of_itself
    inputs = node.all_input_nodes
    if not inputs or not all(argument in known for argument in inputs):
        return None
    if not isinstance(node.target, torch._ops.OpOverload) or not _is_elementwise(node.target):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    result: Any = known[inputs[0]] if node.target.is_view else node.target(*args, **kwargs)
    return torch.tensor(result.item(), dtype=node.meta["val"].dtype)


def _value_of_itself(node: fx.Node) -> torch.Tensor | None:
    """The result of an op on an integer and itself, such as x - x, or on an integer and zero."""
    if node.target not in _OF_ITSELF.keys() | _OF_ZERO or len(node.args) != 2 or node.kwargs:
        return None
    a, b = node.args
    if not isinstance(a, fx.Node) or not _is_integer(a.meta.get("val")):
        return None
    is_same = isinstance(b, fx.Node) and node.target in _OF_ITSELF and _are_same(a, b)
    if is_same or (node.target in _OF_ZERO and b == 0):
        return torch.tensor(_OF_ITSELF.get(node.target, 0), dtype=node.meta["val"].dtype)
    return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _are_same(a: Any, b: Any, depth: int = 8) -> bool:
    """Whether two values are equal: the same node, or the same op on equal values."""
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return type(a) is type(b) and bool(a == b)
    a, b = _origin(a), _origin(b)
    if a is b:
        return True
    if not depth or a.target is not b.target or a.kwargs != b.kwargs or len(a.args) != len(b.args):
        return False
    if not isinstance(a.target, torch._ops.OpOverload) or draws(a.target):
        return False
    return _is_elementwise(a.target) and all(
        _are_same(x, y, depth - 1) for x, y in zip(a.args, b.args, strict=True)
    )


def _origin(node: fx.Node) -> fx.Node:
    """The node that a chain of clones copies; the compiler drops clones."""
    while node.target is aten.clone.default:
        node = node.all_input_nodes[0]
    return node


_OF_ITSELF: dict[Any, bool | int] = {
    aten.eq.Tensor: True,
    aten.ge.Tensor: True,
    aten.le.Tensor: True,
    aten.ne.Tensor: False,
    aten.gt.Tensor: False,
    aten.lt.Tensor: False,
    aten.sub.Tensor: 0,
    aten.bitwise_xor.Tensor: 0,
}
_OF_ZERO = {aten.mul.Scalar, aten.mul.Tensor, aten.bitwise_and.Scalar}


def _is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return False
    return value.device.type == "cpu"


def _is_elementwise(target: torch._ops.OpOverload) -> bool:
    return target.is_view or is_pointwise(target)
