"""Sizes of tensors without data: a kernel's symbols bound to numbers, or to unknowns of PyTorch's.

What has to hold for unknowns is left to PyTorch as a check; nothing is specialized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from turbine import errors
from turbine.kernel.algebra import Atom, Expr, Quotient, Symbol
from turbine.kernel.signature import (
    Parameter,
    Signature,
    cannot_be,
    check_rank,
    mismatch,
)
from turbine.kernel.types import BufferType

Size = int | torch.SymInt
Sizes = Mapping[Symbol, Size]


@dataclass(frozen=True)
class _Row:
    """One axis of an argument: what the kernel says of its size, and what it is."""

    parameter: Parameter
    axis: int
    size: Expr
    actual: Size

    @property
    def place(self) -> str:
        return f"axis {self.axis} of {self.parameter.name}"

    @property
    def order(self) -> tuple[bool, bool]:
        """Plain symbols first: an expression may need what they tell. Numbers before unknowns."""
        plain = len(self.size.terms) == 1 and bool(self.size.symbols)
        return not plain, not isinstance(self.actual, int)


def bind_sizes(
    signature: Signature, args: Mapping[str, Any], known: Mapping[Symbol, int]
) -> dict[Symbol, Size]:
    """The sizes that tensors tell, beside those that are known already."""
    sizes: dict[Symbol, Size] = dict(known)
    told = dict.fromkeys(known, "the kernel")
    for row in sorted(_rows(signature, args), key=lambda row: row.order):
        unknown = [s for s in row.size.symbols if s not in sizes]
        if not unknown:
            _check_equal(signature, row, sizes, told)
        elif len(unknown) == 1:
            sizes[unknown[0]] = _solved(signature, row, unknown[0], sizes)
            told[unknown[0]] = row.place
        else:
            raise cannot_be(signature, row.size, row.actual, row.place)
    return sizes


def _rows(signature: Signature, args: Mapping[str, Any]) -> list[_Row]:
    rows = []
    for parameter in signature.passed:
        given = args.get(parameter.name)
        if not isinstance(parameter.type, BufferType) or given is None:
            continue
        check_rank(signature, parameter, given)
        for axis, size in enumerate(parameter.type.shape):
            rows.append(_Row(parameter, axis, size, plain(given.shape[axis])))
    return rows


def plain(size: Size) -> Size:
    """A size as a number, if it is one."""
    if isinstance(size, int):
        return size
    number: int | None = size.node.maybe_as_int()
    return size if number is None else number


def _check_equal(signature: Signature, row: _Row, sizes: Sizes, told: Mapping[Symbol, str]) -> None:
    wanted = evaluate(row.size, sizes)
    _check(
        wanted == row.actual,
        lambda: mismatch(signature, row.size, wanted, row.actual, row.place, told),
    )


def _solved(signature: Signature, row: _Row, unknown: Symbol, sizes: Sizes) -> Size:
    """The symbol in a size that is linear in it."""
    start = evaluate(row.size, {**sizes, unknown: 0})
    slope = evaluate(row.size, {**sizes, unknown: 1}) - start
    if isinstance(start, int) and start == 0 and isinstance(slope, int) and slope == 1:
        return row.actual
    value = (row.actual - start) // slope
    fits = evaluate(row.size, {**sizes, unknown: value}) == row.actual
    for condition in (value >= 0, fits):
        _check(condition, lambda: cannot_be(signature, row.size, row.actual, row.place))
    return value


def _check(condition: Any, error: Callable[[], errors.KernelError]) -> None:
    """Raise what is known to be wrong; let PyTorch see to what is not known."""
    if isinstance(condition, bool):
        if not condition:
            raise error()
        return
    torch._check(condition, lambda: str(error()))


def evaluate(expr: Expr, sizes: Sizes) -> Size:
    """What an expression comes to, with all its symbols given."""
    total: Size = 0
    for monomial, factor in expr.terms:
        product: Size = factor
        for atom in monomial:
            product = product * _value(atom, sizes)
        total = total + product
    return plain(total)


_CHOOSE: dict[str, Callable[[Any, Any], Any]] = {"min": torch.sym_min, "max": torch.sym_max}


def _value(atom: Atom, sizes: Sizes) -> Size:
    if isinstance(atom, Symbol):
        return sizes[atom]
    if isinstance(atom, Quotient):
        return evaluate(atom.above, sizes) // evaluate(atom.below, sizes)
    chosen: Size = _CHOOSE[atom.name](evaluate(atom.one, sizes), evaluate(atom.other, sizes))
    return chosen


def divides(block: int, size: Size) -> bool:
    """Whether a size is a multiple for certain."""
    if isinstance(size, int):
        return size % block == 0
    return statically_known_true(size % block == 0)
