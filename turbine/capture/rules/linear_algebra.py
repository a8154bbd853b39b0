"""Triangular factors, linear systems, determinants and exponentials, for exported programs.

Under torch.compile, factorizations run in PyTorch, which has LAPACK.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from turbine.capture.declared_ops import KERNELS
from turbine.capture.sizes import is_empty

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


def failure(name: str) -> str:
    """What an assertion on error codes says."""
    return f"{name}: the matrix is singular, or not one that it can be computed for"


def assert_success(info: Tensor, name: str, check_errors: bool = True) -> None:
    """Assert at run time that the error code of every matrix is 0."""
    if check_errors:
        aten._assert_async.msg((info == 0).all(), failure(name))


def of_real(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a rule to real matrices."""

    @wraps(rule)
    def apply_rule(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented if x.is_complex() else rule(x, *args, **kwargs)

    return apply_rule


def call_by_matrix(name: str, batch: Sequence[Any], *operands: Tensor, **options: Any) -> Any:
    """Call a kernel with the axes of a batch as one."""
    count = math.prod(batch)
    results = KERNELS[name](
        *(x.reshape(count, *x.shape[len(batch) :]) for x in operands), **options
    )
    if isinstance(results, Tensor):
        return results.reshape((*batch, *results.shape[1:]))
    return tuple(x.reshape((*batch, *x.shape[1:])) for x in results)


def identity_like(x: Tensor) -> Tensor:
    """An identity for each matrix."""
    size = x.shape[-1]
    return torch.eye(size, dtype=x.dtype, device=x.device).expand(*x.shape[:-2], size, size)


@of_real
def lu_factor_ex(x: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Triple:
    """L and U in one matrix, the swapped rows, counted from 1, and the first pivot that is 0."""
    if not pivot:
        return NotImplemented
    lu, pivots, info = call_by_matrix("lu_factor", x.shape[:-2], x)
    assert_success(info, "linalg.lu_factor", check_errors)
    return lu, pivots[..., : torch.sym_min(*x.shape[-2:])], info


def lu_factor(x: Tensor, *, pivot: bool = True) -> Any:
    """`lu_factor_ex`, which raises; PyTorch 2.11 drops its own assertion."""
    factored = lu_factor_ex(x, pivot=pivot, check_errors=True)
    return factored if factored is NotImplemented else factored[:2]


@of_real
def lu_unpack(
    lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> Triple:
    """P, L and U."""
    rows, columns = lu.shape[-2:]
    p = lower = upper = lu.new_empty(0)
    if unpack_data:
        rank = torch.sym_min(rows, columns)
        unit = torch.eye(rows, rank, dtype=lu.dtype, device=lu.device)
        lower, upper = lu[..., :rank].tril(-1) + unit, lu[..., :rank, :].triu()
    if unpack_pivots:
        order, _ = _permutation(pivots, rows)
        row = torch.arange(rows, device=lu.device).unsqueeze(-1)
        p = (row == order.unsqueeze(-2)).to(lu.dtype)
    return p, lower, upper


def lu(x: Tensor, *, pivot: bool = True) -> Any:
    """P, L and U of a matrix; singular matrices are no error."""
    factored = lu_factor_ex(x, pivot=pivot)
    return factored if factored is NotImplemented else lu_unpack(*factored[:2])


def _permutation(pivots: Tensor, rows: Any) -> Pair:
    """The row that comes to each place, and the place of each row."""
    batch = pivots.shape[:-1]
    order = torch.arange(rows, device=pivots.device).expand(*batch, rows)
    found: Pair = call_by_matrix("permutation", batch, pivots, order)
    return found


def _gather_rows(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(-2, order.unsqueeze(-1).expand(x.shape))


@of_real
def lu_solve(
    lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """Solve a x = b, or x a = b, or one of them with the transpose of a."""
    if not left:
        solution: Tensor = lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT
        return solution
    lu, b = _broadcast(lu, b)
    order, place = _permutation(pivots, lu.shape[-1])
    batch = b.shape[:-2]
    if not adjoint:
        x = _gather_rows(b, order.expand(*batch, order.shape[-1]))
        x = solve_triangular(lu, x, upper=False, unitriangular=True)
        return solve_triangular(lu, x, upper=True)
    x = solve_triangular(lu.mT, b, upper=False)
    x = solve_triangular(lu.mT, x, upper=True, unitriangular=True)
    return _gather_rows(x, place.expand(*batch, place.shape[-1]))


def _broadcast(a: Tensor, b: Tensor) -> Pair:
    """Expand the batch axes of both."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


@of_real
def solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Solve a x = b or x a = b; the other triangle of a is not read."""
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    a, b = _broadcast(a, b)
    batch = b.shape[:-2]
    solution: Tensor = call_by_matrix(
        "solve_triangular", batch, a, b, upper=upper, unit=unitriangular
    )
    return solution


@of_real
def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Pair:
    """`solve_triangular` by its old name, and a copy of the matrices."""
    copies, b = _broadcast(a, b)
    given, is_upper = (copies.mT, not upper) if transpose else (copies, upper)
    return solve_triangular(given, b, upper=is_upper, unitriangular=unitriangular), copies.clone()


@of_real
def solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve a x = b or x a = b for matrices or vectors b; also the factors."""
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    lu, pivots, info = lu_factor_ex(a)
    assert_success(info, "linalg.solve", check_errors)
    columns = b.unsqueeze(-1) if is_vector else b
    x = lu_solve(lu, pivots, columns, left=left)
    return (x.squeeze(-1) if is_vector else x), lu, pivots, info


def solve(a: Tensor, b: Tensor, *, left: bool = True) -> Any:
    """`solve_ex`, which raises; PyTorch 2.11 drops its own assertion."""
    solved = solve_ex(a, b, left=left, check_errors=True)
    return solved if solved is NotImplemented else solved[0]


@of_real
def inv_ex(x: Tensor, *, check_errors: bool = False) -> Pair:
    """The inverse and the error code."""
    inverse, _, _, info = solve_ex(x, identity_like(x))
    assert_success(info, "linalg.inv", check_errors)
    return inverse, info


def inv(x: Tensor) -> Any:
    """`inv_ex`, which raises; PyTorch 2.11 drops its own assertion."""
    inverted = inv_ex(x, check_errors=True)
    return inverted if inverted is NotImplemented else inverted[0]


@of_real
def determinant(x: Tensor) -> Triple:
    """The determinant and the factors."""
    lu, pivots, _ = _factor_for_gradients(x)
    return lu.diagonal(0, -2, -1).prod(-1) * _parity(pivots, x.dtype), lu, pivots


@of_real
def log_determinant(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sign of the determinant, the logarithm of its size, and the factors."""
    lu, pivots, _ = _factor_for_gradients(x)
    diagonal = lu.diagonal(0, -2, -1)
    sign = diagonal.sign().prod(-1) * _parity(pivots, x.dtype)
    return sign, diagonal.abs().log().sum(-1), lu, pivots


def _factor_for_gradients(x: Tensor) -> Triple:
    """Factors of the transpose if PyTorch takes these, which its gradients rely on."""
    factored: Triple = lu_factor_ex(x.mT if x.is_contiguous() else x)
    return factored


def _parity(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """-1 for an odd number of swaps, else 1."""
    own = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    swaps = (pivots != own).sum(-1)
    return (1 - 2 * (swaps % 2)).to(dtype)


@of_real
def cholesky_ex(x: Tensor, *, upper: bool = False, check_errors: bool = False) -> Pair:
    """The triangular factor, and the first step that fails."""
    factor, info = call_by_matrix("cholesky", x.shape[:-2], x.mT if upper else x)
    assert_success(info, "linalg.cholesky", check_errors)
    factor = factor.tril()
    return (factor.mT if upper else factor), info


def cholesky(x: Tensor, upper: bool = False) -> Any:
    """`cholesky_ex`, which raises; PyTorch 2.11 drops its own assertion."""
    factored = cholesky_ex(x, upper=upper, check_errors=True)
    return factored if factored is NotImplemented else factored[0]


@of_real
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Solve a x = b for the matrix of a triangular factor."""
    x = solve_triangular(factor.mT if upper else factor, b, upper=False)
    solution: Tensor = solve_triangular(factor if upper else factor.mT, x, upper=True)
    return solution


@of_real
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix of a triangular factor."""
    inverse: Tensor = cholesky_solve(identity_like(factor), factor, upper)
    return inverse


@of_real
def matrix_exp(x: Tensor) -> Tensor:
    """The Taylor series of a matrix divided by a power of 2, then squared as often."""
    if is_empty(x):
        return x.clone()
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    norm = wide.abs().sum(-2).amax(-1)
    ratio = norm / _LARGEST_NORM[wide.dtype]
    counts = torch.where(ratio > 1, ratio.log2().ceil(), 0.0)
    counts = counts.clamp(max=_MOST_SQUARES)
    small = wide * torch.exp2(-counts)[..., None, None]
    exponential = _taylor_exponential(small)
    result: Tensor = call_by_matrix("square", x.shape[:-2], exponential, counts.to(torch.int64))
    return result.to(x.dtype)


# For norms up to this, the terms of the series after the last are less than rounding errors.
_LARGEST_NORM = {torch.float32: 3.0, torch.float64: 1.0}
_MOST_SQUARES = 1000
_DEGREE, _GROUP = 19, 5


def _taylor_exponential(x: Tensor) -> Tensor:
    """Terms in groups of powers of x, which are polynomials of the next power."""
    powers = [identity_like(x), x]
    for _ in range(_GROUP - 1):
        powers.append(powers[-1] @ x)
    total = torch.zeros_like(x)
    for first in range(_DEGREE + 1 - _GROUP, -1, -_GROUP):
        terms = (powers[k] * (1.0 / math.factorial(first + k)) for k in range(_GROUP))
        total = total @ powers[_GROUP] + sum(terms, torch.zeros_like(x))
    return total


RULES: dict[Any, Callable[..., Any]] = {
    aten.linalg_matrix_exp.default: matrix_exp,
    aten.linalg_lu_factor_ex.default: lu_factor_ex,
    aten.linalg_lu_factor.default: lu_factor,
    aten.linalg_lu.default: lu,
    aten.lu_unpack.default: lu_unpack,
    aten.linalg_lu_solve.default: lu_solve,
    aten.linalg_solve_triangular.default: solve_triangular,
    aten.triangular_solve.default: triangular_solve,
    aten._linalg_solve_ex.default: solve_ex,
    aten.linalg_solve.default: solve,
    aten.linalg_inv.default: inv,
    aten.linalg_inv_ex.default: inv_ex,
    aten._linalg_det.default: determinant,
    aten._linalg_slogdet.default: log_determinant,
    aten.linalg_cholesky_ex.default: cholesky_ex,
    aten.linalg_cholesky.default: cholesky,
    aten.cholesky.default: cholesky,
    aten.cholesky_solve.default: cholesky_solve,
    aten.cholesky_inverse.default: cholesky_inverse,
}
