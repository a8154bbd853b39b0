"""Properties of ops: fills, pointwise, random, mutating, collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from turbine.capture.control_flow import bodies, is_control_flow

aten = torch.ops.aten
# Ops whose result is one repeated number.
FILLS = {aten.full.default, aten.full_like.default, aten.scalar_tensor.default}
# Views that keep the order of elements.
RESHAPES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
# Processes may partition their graphs differently, but have to start collectives in one order.
_COLLECTIVES = {"_c10d_functional", "_c10d_functional_autograd", "_dtensor"}


@dataclass(frozen=True)
class Mutation:
    """A function that mutates its arguments, as the target of a node."""

    run: Callable[..., None]
    __name__: str

    def __call__(self, *args: Any) -> None:
        """Mutate the arguments."""
        self.run(*args)


def is_ordered(node: fx.Node) -> bool:
    """Whether a node keeps its place in the program: it is random, mutates, or has side effects."""
    if writes(node) or draws(node.target) or is_collective(node.target):
        return True
    if is_control_flow(node):
        return any(is_ordered(one) for body in bodies(node) for one in body.graph.nodes)
    higher = isinstance(node.target, torch._ops.HigherOrderOperator)
    return node.op == "call_function" and (higher or node.is_impure())


def draws(target: Any) -> bool:
    """Whether an op draws random numbers."""
    is_op = isinstance(target, torch._ops.OpOverload)
    return is_op and torch.Tag.nondeterministic_seeded in target.tags


def is_collective(target: Any) -> bool:
    """Whether an op communicates with other processes."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace in _COLLECTIVES


def writes(node: fx.Node) -> bool:
    """Whether a node may mutate an argument."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    if is_control_flow(node):
        return any(writes(one) for body in bodies(node) for one in body.graph.nodes)
    return isinstance(target, (torch._ops.HigherOrderOperator, Mutation))


def is_pointwise(target: Any) -> bool:
    """Whether an op computes each element of its result from one element of each operand."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or target in _UNTAGGED


# Pointwise, but not tagged by PyTorch.
_UNTAGGED = {
    aten._prelu_kernel.default,
    aten._to_copy.default,
    aten.clone.default,
    aten.complex.default,
    aten.div.Scalar_mode,
    aten.div.Tensor_mode,
    aten.floor_divide.default,
    aten.masked_fill.Tensor,
    aten.polar.default,
    aten.rsub.Scalar,
    aten.rsub.Tensor,
    aten.where.ScalarOther,
    aten.where.ScalarSelf,
}
