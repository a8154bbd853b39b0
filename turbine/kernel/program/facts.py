"""Facts about sizes at compile time, and which of them code has used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turbine.algebra import Expr, Interval, Symbol, is_never_negative, symbol
from turbine.kernel.trace.validity import Bound


@dataclass
class Facts:
    """Sizes that are part of the code, and divisors of others; code is right wherever those hold.

    A divisor is only used where a bound is not proven without it; `used` has those that were.
    """

    known: Mapping[Symbol, int]
    divisors: Mapping[Symbol, int]
    ranges: Mapping[Symbol, Interval]
    used: set[Symbol] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._plain = _substitute(self.ranges, self.known)
        self._multiples: dict[Symbol, Expr | int] = {
            **self.known,
            **{s: symbol(f"{s}'") * divisor for s, divisor in self.divisors.items()},
        }
        self._divided = _substitute(self.ranges, self._multiples)

    def simplify(self, expr: Expr) -> Expr:
        """The expression with static sizes substituted."""
        return expr.substitute(self.known)

    def is_proven(self, expr: Expr) -> bool:
        """Whether an expression is at least 0 in every program."""
        if is_never_negative(expr.substitute(self.known), self._plain):
            return True
        wanted = {s for s in self.divisors if s in _closure(expr, self.ranges)}
        if not wanted or not is_never_negative(expr.substitute(self._multiples), self._divided):
            return False
        self.used |= wanted
        return True

    def starts_inside(self, bound: Bound) -> bool:
        """Whether no lane is before the first element."""
        return self.is_proven(bound.offset)

    def ends_inside(self, bound: Bound, size: Expr) -> bool:
        """Whether no lane is past the last element."""
        return self.is_proven(bound.limit - bound.offset - size)


def _substitute(
    ranges: Mapping[Symbol, Interval], values: Mapping[Symbol, Expr | int]
) -> dict[Symbol, Interval]:
    return {
        counter: Interval(within.first.substitute(values), within.last.substitute(values))
        for counter, within in ranges.items()
    }


def _closure(expr: Expr, ranges: Mapping[Symbol, Interval]) -> set[Symbol]:
    """The symbols of an expression, and of the ranges of its counters."""
    found: set[Symbol] = set()
    pending = list(expr.symbols)
    while pending:
        one = pending.pop()
        if one in found:
            continue
        found.add(one)
        if one in ranges:
            pending += [*ranges[one].first.symbols, *ranges[one].last.symbols]
    return found
