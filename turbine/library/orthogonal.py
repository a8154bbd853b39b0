"""Householder reflections and Jacobi rotations of matrices, for QR, eigenvectors and SVD.

Matrices are transposed: a row of a buffer, which is contiguous, is a column.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

A, M, N, K = tkl.symbols("A M N K")  # matrices, length of columns, columns, and reflections
T = tkl.types.T
In, Out = tkl.InputBuffer, tkl.OutputBuffer
_MOST_SWEEPS = 30


def _reflect(x: Any, column: Any, vectors: Any, scales: Any, k: Any) -> None:
    """Apply reflection k to a column of x."""
    b, index = tkl.program_id(0), tkl.arange(M)
    below = tkl.load(vectors, (b, k, 0), (None, None, M))
    vector = tkl.where(index > k, below, tkl.where(index == k, 1, 0))
    old = tkl.load(x, (b, column, 0), (None, None, M))
    # Elements before k may be infinite or nan.
    product = tkl.sum(tkl.where(index >= k, vector * old, 0), axis=0)
    new = old - tkl.load(scales, (b, k)) * product * vector
    tkl.store(x, (b, column, 0), tkl.where(index >= k, new, old))


@tk.gen.kernel(A)
def householder(x: In[A, N, M, T], factored: Out[A, N, M, T], scales: Out[A, N, T]) -> None:
    """R, and below its diagonal the vectors of the reflections, as LAPACK has them."""
    b, index = tkl.program_id(0), tkl.arange(M)
    tkl.store(factored, (b, 0, 0), tkl.load(x, (b, 0, 0), (None, N, M)))
    tkl.store(scales, (b, 0), tkl.zeros((N,), T))

    @tkl.for_loop(0, N)
    def over_columns(k: Any) -> None:
        @tkl.for_loop(0, tkl.minimum(k, M))
        def over_reflections(j: Any) -> None:
            _reflect(factored, k, factored, scales, j)

        @tkl.for_loop(k, tkl.where(k < M, k + 1, k))
        def add_reflection(k: Any) -> None:
            column = tkl.load(factored, (b, k, 0), (None, None, M))
            below = tkl.where(index > k, column, 0)
            first = tkl.load(factored, (b, k, k))
            largest = tkl.maximum(tkl.max(tkl.abs(below), axis=0), tkl.abs(first))
            unit = tkl.where(largest == 0, 1, largest)
            parts = below / unit
            rest = tkl.sum(parts * parts, axis=0)
            norm = unit * tkl.sqrt(rest + (first / unit) * (first / unit))
            diagonal = tkl.where(first > 0, -norm, norm)
            diagonal = tkl.where(rest == 0, first, diagonal)
            divisor = tkl.where(rest == 0, 1, first - diagonal)
            changed = tkl.where(index == k, diagonal, below / divisor)
            tkl.store(factored, (b, k, 0), tkl.where(index < k, column, changed))
            scale = (diagonal - first) / tkl.where(rest == 0, 1, diagonal)
            tkl.store(scales, (b, k), tkl.where(rest == 0, 0, scale))


@cache
def _reflections(backward: bool) -> tk.Kernel:
    """The kernel that applies reflections to columns, the last or the first at first."""

    @tk.gen.kernel(A, N)
    def reflect(
        vectors: In[A, K, M, T], scales: In[A, K, T], x: In[A, N, M, T], y: Out[A, N, M, T]
    ) -> None:
        b, column = tkl.program_id(0), tkl.program_id(1)
        tkl.store(y, (b, column, 0), tkl.load(x, (b, column, 0), (None, None, M)))

        @tkl.for_loop(0, K)
        def over_reflections(k: Any) -> None:
            _reflect(y, column, vectors, scales, K - 1 - k if backward else k)

    reflect.__name__ = "reflect_backward" if backward else "reflect"
    return reflect


def reflect(vectors: Any, scales: Any, x: Any, *, backward: bool) -> Any:
    """Apply the reflections of each matrix to columns."""
    return _reflections(backward)(vectors, scales, x)


@tk.gen.kernel(A)
def rotate(
    x: In[A, N, M, T],
    start: In[A, N, N, T],
    rotated: Out[A, N, M, T],
    rotations: Out[A, N, N, T],
    rounding: tkl.f64,
    tolerance: tkl.f64,
) -> None:
    """Rotate pairs of columns until all are orthogonal: one-sided Jacobi.

    The same rotations are applied to `start`. Columns are rotated if the cosine of their angle is
    above `rounding`, until all are below `tolerance`.
    """
    b = tkl.program_id(0)
    tkl.store(rotated, (b, 0, 0), tkl.load(x, (b, 0, 0), (None, N, M)))
    tkl.store(rotations, (b, 0, 0), tkl.load(start, (b, 0, 0), (None, N, N)))

    def rotate_pair(buffer: Any, p: Any, q: Any, size: Any, sine: Any, half: Any) -> None:
        """Rotate by an angle with this sine, and with this tangent of half of it."""
        one = tkl.load(buffer, (b, p, 0), (None, None, size))
        other = tkl.load(buffer, (b, q, 0), (None, None, size))
        tkl.store(buffer, (b, p, 0), one - sine * (other + half * one))
        tkl.store(buffer, (b, q, 0), other + sine * (one - half * other))

    def visit(p: Any, q: Any) -> Any:
        """Make two columns orthogonal; return 1 if they were not, but for rounding errors."""
        one = tkl.load(rotated, (b, p, 0), (None, None, M))
        other = tkl.load(rotated, (b, q, 0), (None, None, M))
        product = tkl.sum(one * other, axis=0)
        squares = tkl.sum(one * one, axis=0), tkl.sum(other * other, axis=0)
        overlap = tkl.abs(product) / (tkl.sqrt(squares[0]) * tkl.sqrt(squares[1]))
        is_rotated = overlap > tkl.to_dtype(rounding, T)

        @tkl.for_loop(0, tkl.where(is_rotated, 1, 0))
        def once(_: Any) -> None:
            ratio = (squares[1] - squares[0]) / (2 * product)
            slope = 1 / (tkl.abs(ratio) + tkl.sqrt(1 + ratio * ratio))
            tangent = tkl.where(ratio < 0, -slope, slope)
            cosine = 1 / tkl.sqrt(1 + tangent * tangent)
            sine = cosine * tangent
            rotate_pair(rotated, p, q, M, sine, sine / (1 + cosine))
            rotate_pair(rotations, p, q, N, sine, sine / (1 + cosine))

        return tkl.where(overlap > tkl.to_dtype(tolerance, T), 1, 0).to(tkl.i64)

    def sweep(count: Any, _: Any) -> Any:
        @tkl.for_loop(0, N, init_args=[tkl.full((), 0, tkl.i64)])
        def over_first(p: Any, before: Any) -> Any:
            @tkl.for_loop(p + 1, N, init_args=[before])
            def over_second(q: Any, found: Any) -> Any:
                return found + visit(p, q)

            return over_second[0]

        return count + 1, over_first[0]

    tkl.while_loop(
        lambda count, found: (count < _MOST_SWEEPS) & (found > 0),
        sweep,
        [tkl.full((), 0, tkl.i64), tkl.full((), 1, tkl.i64)],
    )


KERNELS["householder"] = householder
KERNELS["reflect"] = reflect
KERNELS["rotate"] = rotate
