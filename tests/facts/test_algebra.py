"""Size expressions: values, and soundness of proofs, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from turbine import algebra
from turbine.algebra import Expr, Interval, Symbol

A, B = Symbol("A"), Symbol("B")
PROGRAM = Symbol("program_id(0)", "program", 0)
LOOP = Symbol("k", "loop", 1)
INNER = Symbol("k", "loop", 2)
DATA = Symbol("x", "data", 3)
Values = Mapping[Symbol, int]


@dataclass(frozen=True)
class Pair:
    """An expression, and the same computed with whole numbers."""

    expr: Expr
    of: Callable[[Values], int]

    def __repr__(self) -> str:
        return str(self.expr)


def _symbol(symbol: Symbol) -> Pair:
    return Pair(
        algebra.symbol(symbol.name, symbol.kind, symbol.number), lambda values: values[symbol]
    )


def _number(number: int) -> Pair:
    return Pair(algebra.as_expr(number), lambda values: number)


def _joined(one: Pair, other: Pair, name: str) -> Pair:
    join, numbers = (JOINED | DIVIDED)[name]
    joined = join(one.expr, other.expr)
    return Pair(joined, lambda values: numbers(one.of(values), other.of(values)))


JOINED: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[int, int], int]]] = {
    "+": (lambda x, y: x + y, lambda x, y: x + y),
    "-": (lambda x, y: x - y, lambda x, y: x - y),
    "*": (lambda x, y: x * y, lambda x, y: x * y),
    "min": (algebra.smaller, min),
    "max": (algebra.larger, max),
}
DIVIDED: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[int, int], int]]] = {
    "//": (algebra.quotient, lambda x, y: x // y),
    "%": (algebra.remainder, lambda x, y: x % y),
    "ceiling": (algebra.ceiling, lambda x, y: -(-x // y)),
}


LEAVES = st.one_of(
    st.sampled_from([A, B, PROGRAM, LOOP, INNER, DATA]).map(_symbol),
    st.integers(-4, 4).map(_number),
)
# Blocks are at least 1, as is what is divided by.
DIVISORS = st.one_of(
    st.integers(1, 4).map(_number),
    st.sampled_from([A, B]).map(lambda s: _joined(_symbol(s), _number(1), "+")),
)
PAIRS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_joined, inner, inner, st.sampled_from(sorted(JOINED))),
        st.builds(_joined, inner, DIVISORS, st.sampled_from(sorted(DIVIDED))),
    ),
    max_leaves=6,
)


def _expr(symbol: Symbol) -> Expr:
    return algebra.symbol(symbol.name, symbol.kind, symbol.number)


RANGES = {
    PROGRAM: Interval(algebra.ZERO, _expr(A) - 1),
    LOOP: Interval(algebra.as_expr(-1), _expr(B)),
    INNER: Interval(_expr(LOOP), _expr(LOOP) + _expr(PROGRAM)),
}


def _worlds() -> Iterator[Values]:
    """Every value that symbols can have, sizes being small."""
    for a, b, x in itertools.product((0, 1, 2, 3), (0, 1, 3), (-3, 2)):
        for p in range(a):
            for k in range(-1, b + 1):
                for inner in range(k, k + p + 1):
                    yield {A: a, B: b, DATA: x, PROGRAM: p, LOOP: k, INNER: inner}


WORLDS = list(_worlds())
SOME = WORLDS[::7]
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@quick
@given(PAIRS)
def test_expressions_evaluate_like_python(pair: Pair) -> None:
    for values in SOME:
        assert pair.expr.evaluate(values) == pair.of(values)


@quick
@given(PAIRS, PAIRS)
def test_substitution_preserves_values(pair: Pair, put: Pair) -> None:
    substituted = pair.expr.substitute({DATA: put.expr})
    for values in SOME[::2]:
        inner = {**values, DATA: put.of(values)}
        assert substituted.evaluate(values) == pair.of(inner)


@quick
@given(PAIRS, PAIRS)
def test_addition_is_commutative(one: Pair, other: Pair) -> None:
    assert one.expr + other.expr == other.expr + one.expr
    assert (one.expr - other.expr) + other.expr == one.expr


def test_multiplication_of_counters_of_one_name_is_commutative() -> None:
    one, other = algebra.quotient(_expr(LOOP), 2), algebra.quotient(_expr(INNER), 2)
    assert one * other == other * one


@quick
@given(PAIRS, PAIRS)
def test_equal_expressions_have_equal_values(one: Pair, other: Pair) -> None:
    if one.expr == other.expr:
        assert [one.of(values) for values in SOME] == [other.of(values) for values in SOME]


@quick
@given(PAIRS)
def test_values_are_within_inferred_bounds(pair: Pair) -> None:
    lowest, highest = algebra.least(pair.expr, RANGES), algebra.greatest(pair.expr, RANGES)
    for values in SOME:
        assert lowest.evaluate(values) <= pair.of(values) <= highest.evaluate(values)


@settings(quick, max_examples=200)
@given(PAIRS)
def test_is_never_negative_is_sound(pair: Pair) -> None:
    if algebra.is_never_negative(pair.expr, RANGES):
        assert all(pair.of(values) >= 0 for values in WORLDS)


@quick
@given(PAIRS, st.sampled_from([-3, -2, -1, 1, 2, 5]))
def test_division_rounds_down(pair: Pair, by: int) -> None:
    divided = algebra.quotient(pair.expr, by)
    for values in SOME:
        assert divided.evaluate(values) == pair.of(values) // by


def test_blocks_are_proven_to_start_inside_their_buffer() -> None:
    ranges = {PROGRAM: Interval(algebra.ZERO, algebra.ceiling(_expr(A), _expr(B)) - 1)}
    assert algebra.is_never_negative(_expr(PROGRAM) * _expr(B), ranges)


def test_whole_blocks_are_proven_to_end_inside_their_buffer() -> None:
    size = _expr(A) * 4
    ranges = {PROGRAM: Interval(algebra.ZERO, algebra.ceiling(size, 4) - 1)}
    assert algebra.is_never_negative(size - (_expr(PROGRAM) * 4 + 4), ranges)


def test_counters_of_loops_from_zero_are_proven_nonnegative() -> None:
    ranges = {LOOP: Interval(algebra.ZERO, _expr(B) - 1)}
    assert algebra.is_never_negative(_expr(LOOP) * _expr(A), ranges)
    assert algebra.is_never_negative(_expr(B) - 1 - _expr(LOOP), ranges)


def test_data_dependent_numbers_have_no_proofs() -> None:
    assert not algebra.is_never_negative(_expr(DATA), {})
    assert not algebra.is_never_negative(_expr(DATA) + _expr(A), {})


def test_counters_of_loops_from_negative_numbers_have_no_proofs() -> None:
    ranges = {LOOP: Interval(algebra.as_expr(-1), _expr(B))}
    assert not algebra.is_never_negative(_expr(LOOP), ranges)
