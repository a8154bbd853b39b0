"""Integer expressions over sizes: sums of products of symbols and quotients, kept in one form.

Two expressions that are the same sum are equal; what is left is all that sizes and bounds need:
substitution, extremes over ranges, and a proof that something is never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import index


@dataclass(frozen=True)
class Symbol:
    """An unknown integer. Sizes are never negative; counters of programs and loops have ranges."""

    name: str
    kind: str = "size"  # "size", "program", "loop" or "data", which is computed
    number: int = 0  # distinguishes counters of one name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """above // below, rounded down. If it counts blocks, `above` includes `below - 1`."""

    above: Expr
    below: Expr
    counts_blocks: bool = False

    def __str__(self) -> str:
        if self.counts_blocks:
            return f"ceil({self.above - self.below + 1} / {_tight(self.below)})"
        return f"{_tight(self.above)} // {_tight(self.below)}"


@dataclass(frozen=True)
class Extreme:
    """The smaller or the larger of two."""

    name: str  # "min" or "max"
    one: Expr
    other: Expr

    def __str__(self) -> str:
        return f"{self.name}({self.one}, {self.other})"


Atom = Symbol | Quotient | Extreme
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Expr:
    """A sum: each product of atoms with its factor, none of which is zero."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Expr | int) -> Expr:
        return _sum([*self.terms, *as_expr(other).terms])

    def __sub__(self, other: Expr | int) -> Expr:
        return self + -as_expr(other)

    def __neg__(self) -> Expr:
        return Expr(tuple((monomial, -factor) for monomial, factor in self.terms))

    def __mul__(self, other: Expr | int) -> Expr:
        products = [
            (tuple(sorted(m + n, key=_atom_order)), factor * by)
            for m, factor in self.terms
            for n, by in as_expr(other).terms
        ]
        return _sum(products)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return quotient(self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return remainder(self, other)

    def __rsub__(self, other: int) -> Expr:
        return as_expr(other) - self

    def __rfloordiv__(self, other: int) -> Expr:
        return quotient(other, self)

    def __rmod__(self, other: int) -> Expr:
        return remainder(other, self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        text = " + ".join(_term(*term) for term in self.terms) or "0"
        return text.replace("+ -", "- ")

    @cached_property
    def number(self) -> int | None:
        """The value, if it is known."""
        if not self.terms:
            return 0
        (monomial, factor), *rest = self.terms
        return factor if not monomial and not rest else None

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols of the expression."""
        return frozenset().union(*(_symbols(a) for monomial, _ in self.terms for a in monomial))

    def substitute(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        """The expression with values in place of symbols."""
        if self.symbols.isdisjoint(values):
            return self
        total = ZERO
        for monomial, factor in self.terms:
            product = as_expr(factor)
            for atom in monomial:
                product = product * _substitute(atom, values)
            total = total + product
        return total

    def evaluate(self, values: Mapping[Symbol, int]) -> int:
        """The number, with all unknowns given."""
        number = self.substitute(values).number
        assert number is not None, f"{self} is open"
        return number


def as_expr(value: Expr | int) -> Expr:
    """A number as an expression."""
    if isinstance(value, Expr):
        return value
    number = index(value)  # a float has none
    return Expr((((), number),) if number else ())


ZERO = Expr(())
ONE = as_expr(1)


def symbol(name: str, kind: str = "size", number: int = 0) -> Expr:
    """An unknown as an expression."""
    return Expr((((Symbol(name, kind, number),), 1),))


def quotient(above: Expr | int, below: Expr | int, counts_blocks: bool = False) -> Expr:
    """above // below; terms that divide evenly are taken out of the quotient."""
    above, below = as_expr(above), as_expr(below)
    by = below.number
    if by is None:
        return ONE if above == below else _atom(Quotient(above, below, counts_blocks))
    if by == 0:
        raise ZeroDivisionError(f"{above} is divided by zero")
    whole = Expr(tuple((m, factor // by) for m, factor in above.terms if factor % by == 0))
    rest = Expr(tuple((m, factor) for m, factor in above.terms if factor % by))
    # Of the constant, only the remainder stays in the quotient.
    constant = dict(rest.terms).get((), 0)
    whole, rest = whole + constant // by, rest - constant // by * by
    if rest.number is not None:
        return whole + rest.number // by
    return whole + _atom(Quotient(rest, below, counts_blocks))


def slope(expr: Expr, of: Symbol) -> Expr | None:
    """The factor of a symbol in an expression that is linear in it; None if it is not linear."""
    terms = [(m, f) for m, f in expr.terms if any(of in _symbols(atom) for atom in m)]
    if any(sum(of in _symbols(atom) for atom in m) != 1 or of not in m for m, _ in terms):
        return None
    return _sum((_less(m, of), factor) for m, factor in terms)


def ceiling(above: Expr | int, below: Expr | int) -> Expr:
    """above / below, rounded up."""
    return quotient(as_expr(above) + below - 1, below, counts_blocks=True)


def remainder(above: Expr | int, below: Expr | int) -> Expr:
    """above % below"""
    return as_expr(above) - quotient(above, below) * below


def smaller(one: Expr | int, other: Expr | int) -> Expr:
    """min(one, other)"""
    return _extreme("min", as_expr(one), as_expr(other))


def larger(one: Expr | int, other: Expr | int) -> Expr:
    """max(one, other)"""
    return _extreme("max", as_expr(one), as_expr(other))


@dataclass(frozen=True)
class Interval:
    """The least and the greatest value of a counter; inner counters' may depend on outer ones."""

    first: Expr
    last: Expr


Intervals = Mapping[Symbol, Interval]


def is_never_negative(expr: Expr, ranges: Intervals) -> bool:
    """Whether a proof was found that the expression is at least 0, whatever the sizes."""
    return _is_plainly_positive(least(expr, ranges))


def least(expr: Expr, ranges: Intervals) -> Expr:
    """An expression without counters that this one is never below, if one is found."""
    return _bound_of(expr, ranges, _Side(lowest=True))


def greatest(expr: Expr, ranges: Intervals) -> Expr:
    """An expression without counters that this one is never above, if one is found."""
    return _bound_of(expr, ranges, _Side(lowest=False))


@dataclass(frozen=True)
class _Side:
    lowest: bool

    def at(self, within: Interval) -> Expr:
        return within.first if self.lowest else within.last

    @property
    def other(self) -> _Side:
        return _Side(not self.lowest)


def _bound_of(expr: Expr, ranges: Intervals, side: _Side) -> Expr:
    # The last counter first: its range may name those before it.
    for counter in reversed(list(ranges)):
        if counter in expr.symbols:
            expr = _without(expr, counter, ranges[counter], side)
    return expr


def _without(expr: Expr, counter: Symbol, within: Interval, side: _Side) -> Expr:
    """Replace a counter by its extremes; it stays where the sign of its effect is unknown."""
    total = ZERO
    slope = _sum((_less(m, counter), f) for m, f in expr.terms if counter in m)
    if slope.terms:
        rises, falls = _is_plainly_positive(slope), _is_plainly_positive(-slope)
        if not (rises or falls) or counter in slope.symbols:
            return expr
        total = slope * (side if rises else side.other).at(within)
    for monomial, factor in expr.terms:
        if counter in monomial:
            continue
        inner = [a for a in monomial if counter in _symbols(a)]
        if inner and len(monomial) > 1:
            return expr
        if inner:
            bound = _bound_atom(inner[0], counter, within, side if factor > 0 else side.other)
            total = total + bound * factor
        else:
            total = total + Expr(((monomial, factor),))
    return total


def _bound_atom(atom: Atom, counter: Symbol, within: Interval, side: _Side) -> Expr:
    """The bound of a quotient or an extreme, which are monotonic in their operands."""
    ranges = {counter: within}
    if isinstance(atom, Quotient):
        if atom.below.number is None or atom.below.number < 0:
            return _atom(atom)
        return quotient(_bound_of(atom.above, ranges, side), atom.below, atom.counts_blocks)
    assert isinstance(atom, Extreme)
    one, other = _bound_of(atom.one, ranges, side), _bound_of(atom.other, ranges, side)
    return _extreme(atom.name, one, other)


def _is_plainly_positive(expr: Expr) -> bool:
    """Whether no term can be negative."""
    return all(factor > 0 and all(map(_is_natural, m)) for m, factor in expr.terms)


def _is_natural(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return atom.kind in ("size", "program")  # a loop or a computed number may be below 0
    if isinstance(atom, Quotient):
        return _is_plainly_positive(atom.above) and _is_plainly_positive(atom.below)
    parts = (_is_plainly_positive(atom.one), _is_plainly_positive(atom.other))
    return any(parts) if atom.name == "max" else all(parts)


def _less(monomial: Monomial, atom: Atom) -> Monomial:
    place = monomial.index(atom)
    return monomial[:place] + monomial[place + 1 :]


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Expr:
    factors: dict[Monomial, int] = {}
    for monomial, factor in terms:
        factors[monomial] = factors.get(monomial, 0) + factor
    kept = [(m, f) for m, f in factors.items() if f]
    return Expr(tuple(sorted(kept, key=_order)))


def _order(term: tuple[Monomial, int]) -> tuple[bool, int, list[tuple[str, list[int]]]]:
    monomial, _ = term
    return not monomial, len(monomial), list(map(_atom_order, monomial))


def _atom_order(atom: Atom) -> tuple[str, list[int]]:
    return str(atom), sorted(symbol.number for symbol in _symbols(atom))


def _atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


_CHOOSE: dict[str, Callable[[int, int], int]] = {"min": min, "max": max}


def _extreme(name: str, one: Expr, other: Expr) -> Expr:
    gap = (one - other).number
    if gap is not None:
        return one if (gap <= 0) == (name == "min") else other
    return _atom(Extreme(name, one, other))


def _substitute(atom: Atom, values: Mapping[Symbol, Expr | int]) -> Expr:
    if isinstance(atom, Symbol):
        return as_expr(values[atom]) if atom in values else _atom(atom)
    if isinstance(atom, Quotient):
        above, below = atom.above.substitute(values), atom.below.substitute(values)
        return quotient(above, below, atom.counts_blocks)
    return _extreme(atom.name, atom.one.substitute(values), atom.other.substitute(values))


def _symbols(atom: Atom) -> frozenset[Symbol]:
    if isinstance(atom, Symbol):
        return frozenset({atom})
    if isinstance(atom, Quotient):
        return atom.above.symbols | atom.below.symbols
    return atom.one.symbols | atom.other.symbols


def _term(monomial: Monomial, factor: int) -> str:
    product = "*".join(_factor(atom) for atom in monomial)
    if not product:
        return str(factor)
    return {1: product, -1: f"-{product}"}.get(factor, f"{factor}*{product}")


def _factor(atom: Atom) -> str:
    text = str(atom)
    return f"({text})" if isinstance(atom, Quotient) and " // " in text else text


def _tight(expr: Expr) -> str:
    text = str(expr)
    return text if text.isidentifier() or text.isdigit() else f"({text})"
