"""What follows a convolution in a graph and is computed before its result is stored.

That is a factor and a summand for each channel (batch norm), a residual and bounds (ReLU and its
like), in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from turbine.library.nodes import have_equal_sizes, only_user

aten = torch.ops.aten


@dataclass(frozen=True)
class Tail:
    """Ops of which each is the only user of the one before."""

    node: fx.Node  # the last
    scale: fx.Node | None = None
    shift: fx.Node | None = None
    residual: fx.Node | None = None
    least: float | None = None
    most: float | None = None


def find(node: fx.Node, constant: Container[fx.Node], claimed: set[fx.Node]) -> Tail:
    """The longest tail of a node without claimed ops; claim its ops."""
    tail = Tail(node)
    while (longer := _extend(tail, constant)) is not None and longer.node not in claimed:
        claimed.add(longer.node)
        tail = longer
    return tail


def _extend(tail: Tail, constant: Container[fx.Node]) -> Tail | None:
    """The tail with one more op."""
    for extend in (_add_least, _add_most):
        longer = extend(tail)
        if longer is not None:
            return longer
    user = only_user(tail.node)
    if user is None or user.kwargs or (tail.least, tail.most) != (None, None):
        return None
    x, *others = [*user.args]
    if user.target not in _RULES or not all(isinstance(one, fx.Node) for one in (x, *others)):
        return None
    other: Any = others[0] if x is tail.node else x
    value = other.meta["val"]
    if other is tail.node or value.dtype != torch.float32 or not _has_shape_of(user, tail.node):
        return None
    return _RULES[user.target](tail, user, other, constant)


def _multiply(
    tail: Tail, user: fx.Node, factor: fx.Node, constant: Container[fx.Node]
) -> Tail | None:
    is_first = (tail.scale, tail.shift, tail.residual) == (None, None, None)
    if is_first and factor in constant and _is_per_channel(factor, user):
        return replace(tail, node=user, scale=factor)
    return None


def _add(tail: Tail, user: fx.Node, summand: fx.Node, constant: Container[fx.Node]) -> Tail | None:
    if tail.residual is not None:
        return None
    if tail.shift is None and _is_per_channel(summand, user):
        return replace(tail, node=user, shift=summand)
    return replace(tail, node=user, residual=summand) if _has_shape_of(summand, user) else None


_RULES: dict[Any, Callable[..., Tail | None]] = {aten.mul.Tensor: _multiply, aten.add.Tensor: _add}


def _has_shape_of(node: fx.Node, other: fx.Node) -> bool:
    return have_equal_sizes(node.meta["val"].shape, other.meta["val"].shape)


def _is_per_channel(node: fx.Node, result: fx.Node) -> bool:
    shape, whole = node.meta["val"].shape, result.meta["val"].shape
    broadcast = *[1] * (len(whole) - len(shape)), *shape
    wanted = 1, whole[1], *[1] * (len(whole) - 2)
    return have_equal_sizes(broadcast, wanted) and whole[1] != 1


def _add_least(tail: Tail) -> Tail | None:
    user = only_user(tail.node)
    if user is not None and user.target is aten.relu.default:
        found: tuple[fx.Node, float] | None = user, 0.0
    else:
        found = _match_bound(tail.node, aten.ge.Tensor)
    if found is None or (tail.least, tail.most) != (None, None):
        return None
    node, number = found
    return replace(tail, node=node, least=number)


def _add_most(tail: Tail) -> Tail | None:
    found = _match_bound(tail.node, aten.le.Tensor)
    if found is None or tail.most is not None:
        return None
    node, number = found
    return replace(tail, node=node, most=number)


def _match_bound(node: fx.Node, compare: Any) -> tuple[fx.Node, float] | None:
    """Match `where(compare(x, number) | (x != x), x, number)`, a bound that keeps nan."""
    choices = [user for user in node.users if user.target is aten.where.self]
    if len(choices) != 1:
        return None
    args: Any = choices[0].args
    condition, kept, bound = args
    number = _number(bound)
    if kept is not node or number is None or condition.target is not aten.bitwise_or.Tensor:
        return None
    compared, is_nan = condition.args
    are_alone = all(len(one.users) == 1 for one in (condition, compared, is_nan))
    is_bound = compared.target is compare and compared.args == (node, bound)
    keeps_nan = is_nan.target is aten.ne.Tensor and is_nan.args == (node, node)
    if not (are_alone and is_bound and keeps_nan and len(node.users) == 3):
        return None
    return choices[0], number


def _number(node: Any) -> float | None:
    """The number of a scalar tensor."""
    if node.target is aten.full.default and not node.args[0]:
        return float(node.args[1])
    return float(node.args[0]) if node.target is aten.scalar_tensor.default else None
