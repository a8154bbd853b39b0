"""Sizes of tensors without data: a kernel's symbols bound to numbers, or to unknowns of PyTorch's.

What has to hold for unknowns is left to PyTorch as a check; nothing is specialized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from turbine import errors
from turbine.algebra import Atom, Expr, Quotient, Symbol, slope
from turbine.kernel.program.signature import KernelSignature
from turbine.kernel.program.size_inference import (
    Axis,
    axes_of,
    cannot_be,
    check_inferred,
    in_order,
    mismatch,
)

Size = int | torch.SymInt
Sizes = Mapping[Symbol, Size]


def bind_sizes(
    signature: KernelSignature, args: Mapping[str, Any], known: Mapping[Symbol, int]
) -> dict[Symbol, Size]:
    """The known sizes, and those inferred from the shapes of fake tensors."""
    sizes: dict[Symbol, Size] = dict(known)
    sources = dict.fromkeys(known, "the kernel")
    axes = [replace(axis, given=plain(axis.given)) for axis in axes_of(signature, args, known)]
    for axis, symbol in in_order(axes, sizes):
        if symbol is None:
            _check_equal(signature, axis, sizes, sources)
            continue
        value = _solve(signature, axis, symbol, sizes, sources)
        if value is not None:
            sizes[symbol], sources[symbol] = value, axis.place
    check_inferred(signature, axes, sizes)
    return sizes


def plain(size: Size) -> Size:
    """A size as an int, if it is static."""
    if isinstance(size, int):
        return size
    number: int | None = size.node.maybe_as_int()
    return size if number is None else number


def _check_equal(
    signature: KernelSignature, axis: Axis, sizes: Sizes, sources: Mapping[Symbol, str]
) -> None:
    wanted = evaluate(axis.size, sizes)
    _check(wanted == axis.given, lambda: mismatch(signature, axis, wanted, sources))


def _solve(
    signature: KernelSignature,
    axis: Axis,
    unknown: Symbol,
    sizes: Sizes,
    sources: Mapping[Symbol, str],
) -> Size | None:
    """Solve a linear size for a symbol; None if any value is a solution."""
    factor = slope(axis.size, unknown)
    assert factor is not None
    start, by = evaluate(axis.size, {**sizes, unknown: 0}), evaluate(factor, sizes)
    if isinstance(start, int) and start == 0 and isinstance(by, int) and by == 1:
        given: Size = axis.given
        return given
    error = partial(cannot_be, signature, axis, sources)
    if isinstance(by, int) and by == 0:
        _check(axis.given == start, error)
        return None
    _check(by != 0, error)
    value = plain((axis.given - start) // by)
    for condition in (value >= 0, start + value * by == axis.given):
        _check(condition, error)
    return value


def _check(condition: Any, error: Callable[[], errors.KernelError]) -> None:
    """Raise for sizes that certainly differ; others become guards of PyTorch."""
    if isinstance(condition, bool):
        if not condition:
            raise error()
        return
    torch._check(condition, lambda: str(error()))


def evaluate(expr: Expr, sizes: Sizes) -> Size:
    """The value of an expression, with all its symbols given."""
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
    """Whether a size is certainly a multiple."""
    if isinstance(size, int):
        return size % block == 0
    return statically_known_true(size % block == 0)
