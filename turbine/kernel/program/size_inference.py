"""Infer a kernel's sizes from the shapes of its arguments, in whatever order those are declared.

Note [Inference of sizes]
An axis is declared as an expression of symbols, `HK * GR`. A symbol is inferred from an axis where
it is the only unknown and the expression is linear in it. That is repeated until nothing is left
to infer, so the order of the arguments does not matter. Other axes are checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turbine import errors
from turbine.algebra import Expr, Symbol, slope
from turbine.kernel.program.signature import KernelSignature, Parameter
from turbine.kernel.trace.types import BufferType, axes_text


@dataclass(frozen=True)
class Axis:
    """One axis of an argument: its declared size, less known symbols, and its actual size."""

    parameter: Parameter
    number: int
    size: Expr
    given: Any = None

    @property
    def declared(self) -> Expr:
        """The declared size."""
        assert isinstance(self.parameter.type, BufferType)
        return self.parameter.type.shape[self.number]

    @property
    def place(self) -> str:
        """The axis, in words."""
        return f"axis {self.number} of {self.parameter.name}"

    def rank(self, unknown: Collection[Symbol]) -> tuple[bool, bool, bool]:
        """The order in which axes are looked at: checks, plain symbols, then what divides.

        Sizes that are numbers come before those that PyTorch left open.
        """
        factors = [slope(self.size, symbol) for symbol in unknown]
        divides = any(factor is None or factor.number != 1 for factor in factors)
        return bool(unknown), divides, not isinstance(self.given, int)


def axes_of(
    signature: KernelSignature, args: Mapping[str, Any], known: Mapping[Symbol, int]
) -> list[Axis]:
    """The axes of the tensors that are passed; raises for a wrong rank."""
    axes = []
    for parameter in signature.passed:
        given = args.get(parameter.name)
        if isinstance(parameter.type, BufferType) and given is not None:
            _check_rank(signature, parameter, given)
            rows = zip(parameter.type.shape, given.shape, strict=True)
            axes += [
                Axis(parameter, n, size.substitute(known), actual)
                for n, (size, actual) in enumerate(rows)
            ]
    return axes


def in_order(
    axes: Collection[Axis], sizes: Mapping[Symbol, Any]
) -> Iterator[tuple[Axis, Symbol | None]]:
    """Each axis with the symbol to infer from it, or None where all its symbols are known.

    The caller adds what it infers to `sizes` before it goes on; an axis that gave nothing comes
    again, as a check, once its symbols are known. What is left at the end is not yielded.
    """
    pending, gave_nothing = dict(enumerate(axes)), set[int]()
    while True:
        ready = []
        for place, axis in pending.items():
            unknown = [symbol for symbol in axis.size.symbols if symbol not in sizes]
            if not unknown or (place not in gave_nothing and _tells(axis.size, unknown)):
                ready.append((axis.rank(unknown), place, unknown[0] if unknown else None))
        if not ready:
            return
        _, place, symbol = min(ready, key=lambda row: row[:2])
        yield pending[place], symbol
        if symbol is None or symbol in sizes:
            del pending[place]
        else:
            gave_nothing.add(place)


def _tells(size: Expr, unknown: list[Symbol]) -> bool:
    return len(unknown) == 1 and slope(size, unknown[0]) is not None


def bind_sizes(
    signature: KernelSignature, args: Mapping[str, Any], known: Mapping[Symbol, int]
) -> dict[Symbol, int]:
    """The known sizes, and those inferred from the shapes of a call's tensors."""
    sizes, sources = dict(known), dict.fromkeys(known, "the kernel")
    axes = axes_of(signature, args, known)
    for axis, symbol in in_order(axes, sizes):
        if symbol is None:
            wanted = axis.size.evaluate(sizes)
            if wanted != axis.given:
                raise mismatch(signature, axis, wanted, sources)
            continue
        value = solve(axis.size.substitute(sizes), symbol, int(axis.given))
        if value is None:
            raise cannot_be(signature, axis, sources)
        if value >= 0:
            sizes[symbol], sources[symbol] = value, axis.place
    check_inferred(signature, axes, sizes)
    return sizes


def solve(size: Expr, symbol: Symbol, given: int) -> int | None:
    """Solve a linear size for a symbol: None without a solution, -1 if any value is one."""
    by, start = slope(size, symbol), size.substitute({symbol: 0}).number
    assert by is not None
    assert by.number is not None
    assert start is not None
    if by.number == 0:
        return -1 if given == start else None
    value, rest = divmod(given - start, by.number)
    return value if not rest and value >= 0 else None


def _check_rank(signature: KernelSignature, parameter: Parameter, given: Any) -> None:
    """Raise for a tensor of the wrong rank."""
    assert isinstance(parameter.type, BufferType)
    if given.ndim != parameter.type.rank:
        raise errors.KernelError(
            f"{signature.kernel}: {parameter.name} is {parameter.type}, of "
            f"{axes_text(parameter.type.rank)}, and was given a tensor of {given.ndim}: "
            f"{list(given.shape)}",
            where=signature.place,
            hint=f"reshape or index {parameter.name}, or declare a kernel for {given.ndim} axes",
        )


def check_inferred(
    signature: KernelSignature, axes: Collection[Axis], sizes: Collection[Symbol]
) -> None:
    """Raise if the size of an axis was not inferred."""
    for axis in axes:
        open_ = sorted(str(symbol) for symbol in axis.size.symbols if symbol not in sizes)
        if open_:
            given = ", ".join(f"{name}=64" for name in open_)
            raise errors.KernelError(
                f"{signature.kernel}: cannot infer {', '.join(open_)} from {axis.place}, which is "
                f"{axis.declared} = {axis.given}",
                where=signature.place,
                hint="a size is inferred from an axis where it is the only unknown: declare one, "
                f"or give it, {signature.kernel}.using({given})",
            )


def cannot_be(
    signature: KernelSignature, axis: Axis, sources: Mapping[Symbol, str]
) -> errors.KernelError:
    """The error for a size that no value of its symbol solves."""
    symbols = sorted(axis.declared.symbols, key=str)
    known = [f"{s} from {sources[s]}" for s in symbols if s in sources]
    return errors.KernelError(
        f"{signature.kernel}: {axis.declared} cannot be {axis.given}, which is {axis.place}"
        + (f" (with {', '.join(known)})" if known else ""),
        where=signature.place,
        hint="pass a tensor whose size fits the kernel's type",
    )


def mismatch(
    signature: KernelSignature, axis: Axis, wanted: Any, sources: Mapping[Symbol, str]
) -> errors.KernelError:
    """The error for two axes with different values of one size."""
    named = ", ".join(
        dict.fromkeys(sources[s] for s in sorted(axis.declared.symbols, key=str) if s in sources)
    )
    if not named:
        return errors.KernelError(
            f"{signature.kernel}: {axis.place} is {wanted}, and {axis.given} in the tensor that "
            "was given",
            where=signature.place,
            hint="write a symbol, tkl.sym.N, where sizes may differ",
        )
    return errors.KernelError(
        f"{signature.kernel}: {axis.declared} is {wanted} from {named} and {axis.given} from "
        f"{axis.place}",
        where=signature.place,
        hint="sizes of one name are equal: pass tensors that agree",
    )
