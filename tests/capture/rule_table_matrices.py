"""Rows of the table of rules for dense linear algebra.

Each kernel compiles once for a dtype; tests/capture/test_linear_algebra.py has others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.capture.rule_rows import MATRIX, SQUARE, Arguments, Row, first, x_and

aten = torch.ops.aten
F64 = (torch.float64,)


def _positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


def _factored(*order: int) -> Arguments:
    """The results of an LU factorization and a matrix, in an order."""

    def arguments(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        given = (*torch.linalg.lu_factor(x), y)
        return tuple(given[place] for place in order)

    return arguments


def _reflections(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return (*torch.geqrf(x), y)


def _of_positive(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return (_positive(x),)


def _square(op: Any, arguments: Arguments = first, **options: Any) -> Row:
    return Row(op, F64, SQUARE, arguments, options)


MATRICES = [
    *[_square(op) for op in (aten.linalg_inv.default, aten.linalg_inv_ex.default)],
    *[
        Row(op, F64, MATRIX)
        for op in (
            aten.linalg_lu_factor.default,
            aten.linalg_lu_factor_ex.default,
            aten.linalg_lu.default,
            aten.linalg_qr.default,
            aten.geqrf.default,
            aten.linalg_pinv.atol_rtol_tensor,
        )
    ],
    Row(aten.linalg_qr.default, F64, MATRIX, x_and("complete")),
    Row(aten._linalg_svd.default, F64, MATRIX, x_and(False, False)),
    _square(aten.linalg_pinv.atol_rtol_tensor, lambda x, y: (x + x.mT,), hermitian=True),
    Row(aten._linalg_eigh.default, F64, SQUARE, compared=1),
    Row(aten._linalg_eigh.default, F64, SQUARE, x_and("U"), compared=1),
    _square(aten.lu_unpack.default, _factored(0, 1)),
    _square(aten.linalg_lu_solve.default, _factored(0, 1, 2)),
    _square(aten.linalg_lu_solve.default, _factored(0, 1, 2), adjoint=True),
    _square(aten.linalg_lu_solve.default, _factored(0, 1, 2), left=False),
    *[
        _square(
            aten.linalg_solve_triangular.default,
            lambda x, y: (_positive(x), y),
            upper=upper,
            left=left,
            unitriangular=not left,
        )
        for upper in (False, True)
        for left in (False, True)
    ],
    *[
        _square(aten.triangular_solve.default, lambda x, y: (y, _positive(x)), transpose=transpose)
        for transpose in (False, True)
    ],
    *[
        _square(op, lambda x, y: (x, y[..., 0]))
        for op in (aten.linalg_solve.default, aten._linalg_solve_ex.default)
    ],
    _square(aten.linalg_solve.default, lambda x, y: (x, y), left=False),
    *[
        _square(op, arguments)
        for op in (aten._linalg_det.default, aten._linalg_slogdet.default)
        for arguments in (lambda x, y: (x,), lambda x, y: (x.mT,), lambda x, y: (x[:0, :0],))
    ],
    *[
        _square(op, _of_positive, upper=upper)
        for op in (
            aten.linalg_cholesky.default,
            aten.linalg_cholesky_ex.default,
            aten.cholesky.default,
            aten.cholesky_inverse.default,
        )
        for upper in (False, True)
    ],
    _square(aten.cholesky_solve.default, lambda x, y: (y, _positive(x)), upper=True),
    _square(aten.linalg_matrix_exp.default, lambda x, y: (torch.stack([x * 0, x, x * 9]),)),
    Row(aten.linalg_householder_product.default, F64, MATRIX, lambda x, y: torch.geqrf(x.mT)),
    *[
        _square(aten.ormqr.default, _reflections, left=left, transpose=transpose)
        for left in (False, True)
        for transpose in (False, True)
    ],
]
