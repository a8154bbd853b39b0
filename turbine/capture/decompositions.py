"""Which ops are rewritten into simpler ones before lowering, and how a user adds to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch._decomp import get_decompositions

from turbine.capture import rules

Op = torch._ops.OperatorBase
Table = dict[Op, Callable[..., Any]]

aten = torch.ops.aten

# Beyond core ATen: ops the compiler lacks that PyTorch can take apart itself.
EXTRA_OPS: tuple[Any, ...] = ()

_scoped: ContextVar[Table | None] = ContextVar("aot_decompositions", default=None)


def current_aot_decompositions() -> Table:
    """A copy of the table in force for this thread and scope."""
    return dict(_scoped.get() or _default())


@contextmanager
def extend_aot_decompositions(
    *,
    from_current: bool = True,
    add_ops: Iterable[Any] | dict[Any, Callable[..., Any]] | None = None,
    remove_ops: Iterable[Any] | None = None,
) -> Iterator[Table]:
    """Add decompositions (torch's own for a list of ops, yours for a dict) in a `with` block.

    >>> import torch, turbine
    >>> with turbine.aot.extend_aot_decompositions(add_ops=[torch.ops.aten.hardswish]) as table:
    ...     torch.ops.aten.hardswish.default in table
    True
    """
    table = current_aot_decompositions() if from_current else {}
    if isinstance(add_ops, dict):
        for op, rule in add_ops.items():
            table.update(dict.fromkeys(_overloads(op), rule))
    elif add_ops is not None:
        table.update(get_decompositions(list(add_ops)))
    for op in remove_ops or ():
        for overload in _overloads(op):
            table.pop(overload, None)
    token = _scoped.set(table)
    try:
        yield table
    finally:
        _scoped.reset(token)


def _overloads(op: Any) -> list[Op]:
    if isinstance(op, torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    return [op]


@cache
def _default() -> Table:
    table: Table = dict(torch.export.default_decompositions().items())
    table.update(get_decompositions(list(EXTRA_OPS)))
    table.update(rules.RULES)
    return table
