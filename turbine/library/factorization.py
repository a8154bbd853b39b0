"""Factor matrices and solve triangular systems, for decompositions of linear algebra.

A program has one matrix, or some columns of right sides. It goes through blocks from left to right:
each first subtracts the products with blocks that are done.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

A, M, N, K = tkl.symbols("A M N K")  # matrices, rows, columns, and columns of right sides
T = tkl.types.T
In, Out = tkl.InputBuffer, tkl.OutputBuffer
_SIDE = 16  # of a block
_BLOCK = (None, _SIDE, _SIDE)


def _subtract_products(block: Any, left: Any, right: Any, steps: tuple[Any, Any]) -> Any:
    """A block less the products of left(k) and right(k)."""

    @tkl.for_loop(*steps, init_args=[tkl.zeros((_SIDE, _SIDE), T)])
    def total(k: Any, products: Any) -> Any:
        return tkl.dot(left(k), right(k), products)

    return block - total[0]


def _substitute(
    a: Any, x: Any, row: Any, column: Any, steps: Any, *, upper: bool, unit: bool
) -> None:
    """Solve for the rows of a block of x in place, by the triangle of a on the diagonal."""
    b = tkl.program_id(0)

    @tkl.for_loop(0, steps)
    def over_rows(step: Any) -> None:
        i = _SIDE - 1 - step if upper else step
        factors = tkl.load(a, (b, row + i, row), (None, None, _SIDE))
        others = tkl.arange(_SIDE)
        is_known = others > i if upper else others < i
        known = factors[:, None] * tkl.load(x, (b, row, column), _BLOCK)
        place = b, row + i, column
        value = tkl.load(x, place, (None, None, _SIDE))
        value = value - tkl.sum(tkl.where(is_known[:, None], known, 0), axis=0)
        tkl.store(x, place, value if unit else value / tkl.load(a, (b, row + i, row + i)))


@cache
def _triangular(upper: bool, unit: bool) -> tk.Kernel:
    """The kernel that solves a x = y for a triangular matrix."""

    @tk.gen.kernel(A, K // _SIDE)
    def solve(a: In[A, N, N, T], y: In[A, N, K, T], x: Out[A, N, K, T]) -> None:
        b, column = tkl.program_id(0), tkl.program_id(1) * _SIDE
        tkl.store(x, (b, 0, column), tkl.load(y, (b, 0, column), (None, N, _SIDE)))
        blocks = tkl.cdiv(N, _SIDE)

        @tkl.for_loop(0, blocks)
        def over_blocks(step: Any) -> None:
            i = blocks - 1 - step if upper else step
            row = i * _SIDE
            block = _subtract_products(
                tkl.load(x, (b, row, column), _BLOCK),
                lambda k: tkl.load(a, (b, row, k * _SIDE), _BLOCK),
                lambda k: tkl.load(x, (b, k * _SIDE, column), _BLOCK),
                (i + 1, blocks) if upper else (0, i),
            )
            tkl.store(x, (b, row, column), block)
            _substitute(a, x, row, column, _SIDE, upper=upper, unit=unit)

    shape = "upper" if upper else "lower"
    solve.__name__ = f"solve_{shape}_unit" if unit else f"solve_{shape}"
    return solve


def _report(info: Any, k: Any, fails: Any) -> None:
    """Store the first step that fails, counted from 1."""
    b = tkl.program_id(0)
    before = tkl.load(info, (b,))
    tkl.store(info, (b,), tkl.where((before == 0) & fails, k + 1, before).to(tkl.i32))


def _eliminate(x: Any, k: Any, column: Any, pivot: Any, right: Any) -> None:
    """Divide column k by its pivot below the diagonal, and update the columns after it.

    `right` has the row of factors, for the columns of the block that starts at `column`.
    """
    b, columns = tkl.program_id(0), column + tkl.arange(_SIDE)

    @tkl.for_loop(column // _SIDE, M // _SIDE)
    def over_blocks(i: Any) -> None:
        row = i * _SIDE
        is_below = (row + tkl.arange(_SIDE) > k)[:, None]
        left = (tkl.load(x, (b, row, k), (None, _SIDE, None)) / pivot)[:, None]
        block = tkl.load(x, (b, row, column), _BLOCK)
        updated = tkl.where((columns == k)[None], left, block - left * right[None])
        is_changed = is_below & (columns >= k)[None]
        tkl.store(x, (b, row, column), tkl.where(is_changed, updated, block))


@tk.gen.kernel(A)
def lu_factor(
    x: In[A, M, N, T], lu: Out[A, M, N, T], pivots: Out[A, M, tkl.i32], info: Out[A, tkl.i32]
) -> None:
    """L and U in one matrix, rows swapped as LAPACK does; as many pivots as columns are stored."""
    b = tkl.program_id(0)
    tkl.store(info, (b,), tkl.full((), 0, tkl.i32))
    tkl.store(lu, (b, 0, 0), tkl.load(x, (b, 0, 0), (None, M, N)))

    def choose_pivot(k: Any) -> Any:
        """Swap rows, so that row k has the largest element of column k; return it."""
        size = tkl.abs(tkl.load(lu, (b, 0, k), (None, M, None)))
        row = tkl.argmax(tkl.where(tkl.arange(M) >= k, size, -1), axis=0)
        tkl.store(pivots, (b, k), (row + 1).to(tkl.i32))
        old = tkl.load(lu, (b, k, 0), (None, None, N))
        new = tkl.load(lu, (b, row, 0), (None, None, N))
        tkl.store(lu, (b, row, 0), old)
        tkl.store(lu, (b, k, 0), new)
        return tkl.load(lu, (b, k, k))

    @tkl.for_loop(0, N // _SIDE)
    def over_panels(p: Any) -> None:
        column = p * _SIDE

        @tkl.for_loop(0, M // _SIDE)
        def over_blocks(i: Any) -> None:
            row = i * _SIDE
            block = _subtract_products(
                tkl.load(lu, (b, row, column), _BLOCK),
                lambda k: tkl.load(lu, (b, row, k * _SIDE), _BLOCK),
                lambda k: tkl.load(lu, (b, k * _SIDE, column), _BLOCK),
                (0, tkl.minimum(i, p)),
            )
            tkl.store(lu, (b, row, column), block)
            steps = tkl.where(i < p, _SIDE, 0)
            _substitute(lu, lu, row, column, steps, upper=False, unit=True)

        @tkl.for_loop(column, tkl.minimum(column + _SIDE, tkl.minimum(M, N)))
        def over_columns(k: Any) -> None:
            pivot = choose_pivot(k)
            _report(info, k, pivot == 0)
            right = tkl.load(lu, (b, k, column), (None, None, _SIDE))
            _eliminate(lu, k, column, tkl.where(pivot == 0, 1, pivot), right)


@tk.gen.kernel(A)
def cholesky(x: In[A, M, M, T], factor: Out[A, M, M, T], info: Out[A, tkl.i32]) -> None:
    """The lower factor of the lower triangle; elements above it have no meaning."""
    b = tkl.program_id(0)
    tkl.store(info, (b,), tkl.full((), 0, tkl.i32))
    tkl.store(factor, (b, 0, 0), tkl.load(x, (b, 0, 0), (None, M, M)))

    @tkl.for_loop(0, M // _SIDE)
    def over_panels(p: Any) -> None:
        column = p * _SIDE

        @tkl.for_loop(p, M // _SIDE)
        def over_blocks(i: Any) -> None:
            row = i * _SIDE
            block = _subtract_products(
                tkl.load(factor, (b, row, column), _BLOCK),
                lambda k: tkl.load(factor, (b, row, k * _SIDE), _BLOCK),
                lambda k: tkl.transpose(tkl.load(factor, (b, column, k * _SIDE), _BLOCK)),
                (0, p),
            )
            tkl.store(factor, (b, row, column), block)

        @tkl.for_loop(column, tkl.minimum(column + _SIDE, M))
        def over_columns(k: Any) -> None:
            square = tkl.load(factor, (b, k, k))
            fails = tkl.logical_not(square > 0)
            _report(info, k, fails)
            pivot = tkl.where(fails, 1, tkl.sqrt(square))
            tkl.store(factor, (b, k, k), pivot)
            right = tkl.load(factor, (b, column, k), (None, _SIDE, None)) / pivot
            _eliminate(factor, k, column, pivot, right)


@tk.gen.kernel(A)
def permutation(
    pivots: In[A, K, tkl.i32],
    rows: In[A, M, tkl.i64],
    permuted: Out[A, M, tkl.i64],
    places: Out[A, M, tkl.i64],
) -> None:
    """Swap row k with row pivots[k] - 1, for each k in order; `places` is the inverse."""
    b = tkl.program_id(0)
    tkl.store(permuted, (b, 0), tkl.load(rows, (b, 0), (None, M)))

    @tkl.for_loop(0, K)
    def over_pivots(k: Any) -> None:
        other = tkl.load(pivots, (b, k)) - 1
        old, new = tkl.load(permuted, (b, k)), tkl.load(permuted, (b, other))
        tkl.store(permuted, (b, k), new)
        tkl.store(permuted, (b, other), old)

    tkl.store(places, (b, tkl.load(permuted, (b, 0), (None, M))), tkl.arange(M))


def solve_triangular(a: Tensor, y: Tensor, *, upper: bool, unit: bool) -> Tensor:
    """Solve a x = y for each matrix of a batch; the other triangle of a is not read."""
    x: Tensor = _triangular(upper, unit)(a, y)
    return x


KERNELS["lu_factor"] = lu_factor
KERNELS["cholesky"] = cholesky
KERNELS["permutation"] = permutation
KERNELS["solve_triangular"] = solve_triangular
