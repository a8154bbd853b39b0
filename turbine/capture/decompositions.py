"""The table of decompositions that run before lowering, and how a user extends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch._prims
from torch._decomp import decomposition_table, get_decompositions
from torch._library.utils import lookup_op

from turbine.capture import declared_ops
from turbine.capture.effects import draws
from turbine.capture.rules import EXPORTED, OF_COMPLEX, OF_PACKAGES, RULES
from turbine.capture.rules.ordering import OF_STATIC_LENGTHS
from turbine.mlir import torch_ops

Table = dict[Any, Callable[..., Any]]

aten = torch.ops.aten

# Decomposed by PyTorch's rule although the dialect (or a prim) has the op: lowering it fails or
# gives wrong results.
MISTRUSTED = (
    aten.squeeze.dims,
    aten.upsample_bilinear2d,
    aten.upsample_nearest2d,
    aten.as_strided_copy,
    aten.diagonal_copy,
    aten.expand_copy,
    aten.narrow_copy,
    aten.permute_copy,
    aten.squeeze_copy,
    aten.t_copy,
    aten.transpose_copy,
    aten.unbind_copy,
    aten.unfold_copy,
    aten.unsqueeze_copy,
    aten.view_copy,
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
)

_scoped: ContextVar[Table | None] = ContextVar("aot_decompositions", default=None)


def current_aot_decompositions() -> Table:
    """A copy of the current table of this thread and scope."""
    scoped = _scoped.get()
    if scoped is not None:
        return dict(scoped)
    return {**_default(), **declared_ops.decompositions(), **_rules_for_packages()}


def _rules_for_packages() -> Table:
    """Rules for ops of other packages, as far as these are loaded."""
    table: Table = {}
    for name, rule in OF_PACKAGES.items():
        with suppress(AttributeError):
            table[lookup_op(name)] = rule
    return table


def current_tracing_decompositions() -> Table:
    """The table for traced functions: random ops and factorizations stay in PyTorch."""
    table = {op: _rule_of_real(rule) for op, rule in current_aot_decompositions().items()}
    chosen = {op: RULES.get(op) if EXPORTED.get(op) is rule else rule for op, rule in table.items()}
    table = {op: rule for op, rule in chosen.items() if rule is not None}
    # Random ops stay, unless the rule is ours: it returns NotImplemented where the op draws.
    kept = {op: rule for op, rule in table.items() if op in RULES or not draws(op)}
    return {op: rule for op, rule in kept.items() if op not in _LIFTS} | declared_ops.IN_PROCESS


def current_training_decompositions() -> Table:
    """The table for graphs of AOTAutograd, in which PyTorch searches rows of dynamic lengths."""
    kept = current_tracing_decompositions()
    kept |= {op: rule for op, rule in OF_STATIC_LENGTHS.items() if kept.get(op) is RULES[op]}
    return kept


# torch.tensor(3) in a function becomes one of these; decomposed, its value could not be traced.
_LIFTS = {aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default}


@contextmanager
def extend_aot_decompositions(
    *,
    from_current: bool = True,
    add_ops: Iterable[Any] | dict[Any, Callable[..., Any]] | None = None,
    remove_ops: Iterable[Any] | None = None,
) -> Iterator[Table]:
    """Change the decompositions of exports in a `with` block.

    Args:
        from_current: start from the current table, else from an empty one.
        add_ops: a list of ops to decompose by PyTorch's rules, or a dict from ops to rules.
        remove_ops: ops that are not decomposed.

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


def _overloads(op: Any) -> list[Any]:
    if isinstance(op, torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    return [op]


@cache
def _default() -> Table:
    """The core ATen table, PyTorch's rules for ops that the dialect lacks, then our rules."""
    table: Table = dict(torch.export.default_decompositions().items())
    for op, rule in decomposition_table.items():
        if isinstance(op, torch._ops.OpOverload) and _is_decomposed(op):
            table.setdefault(op, rule)
    table.update(get_decompositions(list(MISTRUSTED)))
    table.update(RULES | EXPORTED)
    return table | {op: _OfComplex(rule, table.get(op)) for op, rule in OF_COMPLEX.items()}


@dataclass(frozen=True)
class _OfComplex:
    """A rule for calls with complex numbers, and the rule for others, if there is one."""

    rule: Callable[..., Any]
    other: Callable[..., Any] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_complex, (*args, *kwargs.values()))):
            result = self.rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return NotImplemented if self.other is None else self.other(*args, **kwargs)


def is_complex(value: Any) -> bool:
    """Whether an argument is a complex tensor, number or dtype."""
    if isinstance(value, torch.Tensor | torch.dtype):
        dtype = value if isinstance(value, torch.dtype) else value.dtype
        return dtype.is_complex
    return isinstance(value, complex)


def _rule_of_real(rule: Callable[..., Any]) -> Any:
    return rule.other if isinstance(rule, _OfComplex) else rule


def _is_decomposed(op: torch._ops.OpOverload) -> bool:
    """Whether PyTorch's rule for an op is used: the dialect lacks the op, which wraps no prim."""
    name = op.name()
    wraps_a_prim = name.partition("::")[2].partition(".")[0] in _PRIM_NAMES
    return not torch_ops.is_defined(name) and not wraps_a_prim


_PRIM_NAMES = frozenset(torch._prims.__all__)
