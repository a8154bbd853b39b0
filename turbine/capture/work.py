"""Estimate how much arithmetic a graph does, to choose where it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import fx

from turbine.capture.control_flow import bodies
from turbine.capture.declared_ops import OPERATIONS
from turbine.capture.grouped_product import GROUPED_PRODUCT
from turbine.capture.sizes import count_elements, hint

aten = torch.ops.aten


def mflop(graph: fx.Graph) -> float:
    """Millions of floating point operations of one call, at the example's sizes."""
    return _sum(_flop, graph) / 1e6


def load(graph: fx.Graph) -> float:
    """How long a call takes on one core, in millions of operations of a matmul.

    Formulas take many operations for an element, reductions read more than they give, and a byte
    of memory takes as long as some operations. Of tables that are read by index it is that of the
    rows.
    """
    ends = [node for node in graph.nodes if node.op in ("placeholder", "output")]
    ends = [node for node in ends if not _is_table(node)]
    inside = {value for node in ends for value in (node, *node.all_input_nodes)}
    inner = _sum(_extra, graph) / 1e6
    return mflop(graph) + inner + _OPERATIONS_OF_A_BYTE * megabytes(inside)


def _is_table(node: fx.Node) -> bool:
    """Whether nodes only read some of its rows."""
    return bool(node.users) and all(
        _is_lookup(user) and user.args[0] is node for user in node.users
    )


def _is_lookup(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    return packet in _LOOKUPS or name_of(node).startswith(_BAGS)


def operations(node: fx.Node) -> float:
    """The operations of one call of an op, at the example's sizes; those of a view are 0."""
    is_view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    return 0.0 if is_view else float(_flop(node) + _extra(node))


def _sum(count: Callable[[fx.Node], float], graph: fx.Graph) -> float:
    """The sum over the calls of a graph, each turn of a loop included."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    inside = [_turns(node) * _sum(count, body.graph) for node in calls for body in bodies(node)]
    return sum(map(count, calls)) + sum(inside)


def _turns(node: fx.Node) -> int:
    """How often control flow runs its bodies: once for each row, or once if data decides."""
    place = _ROWS.get(node.target.name())  # type: ignore[union-attr]
    if place is None:
        return 1
    rows: Any = node.args[place]
    return hint(rows[0].meta["val"].shape[0])


# The index of the operands whose rows a loop goes through.
_ROWS = {"scan": 2, "map_impl": 1}


def megabytes_stacked(node: fx.Node) -> float:
    """Millions of bytes of the results that control flow stacks, a row each turn."""
    if node.target.name() not in _ROWS:  # type: ignore[union-attr]
        return 0
    # A scan returns its state before them.
    state: Any = node.args[1] if node.target.name() == "scan" else ()  # type: ignore[union-attr]
    return sum(map(_bytes, node.meta["val"][len(state) :])) / 1e6


def _extra(node: fx.Node) -> float:
    """The operations of a formula or a reduction beyond one for each result."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _REDUCTIONS:
        return count_elements(_operand(node, 0))
    if packet in FORMULAS and isinstance(node.meta.get("val"), torch.Tensor):
        return count_elements(node.meta["val"]) * _FORMULA_SIZE
    return 0


_OPERATIONS_OF_A_BYTE = 4
# Ops that read some rows of their first operand: PyTorch's, and kernels of the library.
_LOOKUPS = {aten.embedding, aten.index_select, aten.index}
_BAGS = "tk::embedding_bag"


def megabytes(nodes: Iterable[fx.Node]) -> float:
    """Millions of bytes of the nodes' values, at the example's sizes."""
    return sum(_bytes(node.meta.get("val")) for node in nodes) / 1e6


def _bytes(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return count_elements(value) * value.element_size()


def _flop(node: fx.Node) -> float:
    if name_of(node).startswith(_BAGS):
        return count_elements(_operand(node, 1)) * hint(_operand(node, 0).shape[-1])
    declared = OPERATIONS.get(name_of(node))
    if declared is not None:
        return declared(*arguments_of(node))
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    inner = _INNER.get(node.target)
    if inner is not None:
        return count_elements(value) * 2 * inner(node)
    return count_elements(value)


_REDUCTIONS = {
    getattr(aten, name) for name in "sum mean prod amax amin argmax argmin all any".split()
}
# Functions that take many operations for one element.
FORMULAS = {
    getattr(aten, name)
    for name in (
        *"exp exp2 expm1 log log1p log2 tanh sigmoid".split(),
        *"erf erfc sin cos pow gelu _softmax".split(),
    )
}
_FORMULA_SIZE = 20


def arguments_of(node: fx.Node) -> list[Any]:
    """The arguments of a call, with the defaults that torch.export omits."""
    target: Any = node.target
    given: Any = fx.map_arg(node.args, lambda one: one.meta["val"])
    named: Any = fx.map_arg(node.kwargs, lambda one: one.meta["val"])
    rest = target._schema.arguments[len(given) :]
    return [*given, *(named.get(a.name, a.default_value) for a in rest)]


def name_of(node: fx.Node) -> str:
    """The name of an op as tables of ops have it; empty for other calls."""
    return node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""


def _operand(node: fx.Node, index: int) -> torch.Tensor:
    operand: Any = node.args[index]
    value: torch.Tensor = operand.meta["val"]
    return value


def _contraction_size(index: int) -> Callable[[fx.Node], int]:
    return lambda node: hint(_operand(node, index).shape[-1])


def _convolution_size(node: fx.Node) -> int:
    weight = _operand(node, 1)
    return prod(hint(d) for d in weight.shape[1:])


# Multiply-adds for one element of the result.
_INNER: dict[Any, Callable[[fx.Node], int]] = {
    aten.mm.default: _contraction_size(0),
    aten.bmm.default: _contraction_size(0),
    aten.addmm.default: _contraction_size(1),
    aten.baddbmm.default: _contraction_size(1),
    aten.convolution.default: _convolution_size,
    GROUPED_PRODUCT: _contraction_size(0),
}
