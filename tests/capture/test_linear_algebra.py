"""Factors, solutions and eigenvectors of matrices in exports, beside eager PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, linalg, nn
from torch.export import Dim

import turbine
from tests.models import compiled
from turbine import errors

pytestmark = [pytest.mark.run, pytest.mark.sweep(1)]


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(2))


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


def solve_all(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    factor = linalg.cholesky(x @ x.mT)
    return (
        linalg.solve(x, y),
        linalg.solve_triangular(factor.mT, y.mT, upper=False, left=False),
        torch.cholesky_solve(y, factor),
        *linalg.slogdet(x),
        linalg.inv(x),
    )


@cache
def solver() -> turbine.Artifact:
    """`solve_all` for any number of matrices of any size."""
    # With sizes of 1, both traces would be run to compare them, with kernels that compile for it.
    batch, size = Dim("batch", min=2), Dim("size", min=2)
    shapes = ({0: batch, 1: size, 2: size}, {0: batch, 1: size})
    return compiled(solve_all, drawn(2, 5, 5), drawn(2, 5, 3), dynamic_shapes=(shapes,))


def test_systems_of_dynamic_size_are_solved() -> None:
    for batch, size in ((3, 2), (2, 16), (2, 70)):
        x, y = drawn(batch, size, size), drawn(batch, size, 3)
        torch.testing.assert_close(solver()(x, y), solve_all(x, y), rtol=1e-6, atol=1e-6)


def test_a_singular_matrix_is_an_error() -> None:
    x = drawn(2, 5, 5)
    x[1, 2] = 0
    with pytest.raises(errors.RunError, match="the matrix is singular"):
        solver()(x, drawn(2, 5, 3))


def test_a_matrix_that_is_not_positive_definite_is_an_error() -> None:
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(errors.RunError, match=r"linalg\.cholesky: the matrix is singular, or not"):
        compiled(linalg.cholesky, x)(x)


def test_pivots_and_error_codes_are_those_of_lapack() -> None:
    def factor(x: Tensor, y: Tensor) -> list[Tensor]:
        return [*linalg.lu_factor_ex(x), *linalg.cholesky_ex(y)]

    ties = torch.tensor([[1.0, 2, 3], [-1, 2, 5], [1, 2, 3]], dtype=torch.float64)
    x = torch.stack([ties, ties * 0, torch.eye(3).flip(0).to(ties.dtype)])
    y = torch.stack([positive(ties), -positive(ties), torch.eye(3, dtype=ties.dtype)])
    found, expected = compiled(factor, x, y)(x, y), factor(x, y)
    # PyTorch leaves open what a Cholesky factor is after an error.
    found[3], expected[3] = found[3][[0, 2]], expected[3][[0, 2]]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_other_triangle_is_not_read() -> None:
    def solve(x: Tensor, y: Tensor) -> list[Tensor]:
        lower, upper = x.tril() + garbage.triu(1), x.triu() + garbage.tril(-1)
        return [
            linalg.solve_triangular(lower, y, upper=False),
            linalg.solve_triangular(upper, y, upper=True),
            linalg.cholesky(lower),
            linalg.eigvalsh(lower),
        ]

    x, y = positive(drawn(20, 20)), drawn(20, 2)
    garbage = torch.full((20, 20), float("nan"), dtype=x.dtype)
    torch.testing.assert_close(compiled(solve, x, y)(x, y), solve(x, y), rtol=1e-9, atol=1e-9)


def factor_in_f32(x: Tensor, y: Tensor) -> list[Tensor]:
    u, values, vh = linalg.svd(x)
    eigenvalues, vectors = linalg.eigh(y)
    q, r = linalg.qr(x)
    width = values.shape[-1]
    return [
        u.mT @ u,
        vh @ vh.mT,
        (u[..., :width] * values.unsqueeze(-2)) @ vh[..., :width, :],
        values,
        eigenvalues,
        vectors.mT @ vectors,
        (vectors * eigenvalues.unsqueeze(-2)) @ vectors.mT,
        q,
        r,
        linalg.pinv(x),
        linalg.matrix_rank(x),
        torch.matrix_exp(y / 8),
    ]


@pytest.mark.parametrize(("rows", "columns"), [(9, 5), (5, 9), (40, 40), (0, 3)])
def test_orthogonal_factors_in_f32(rows: int, columns: int) -> None:
    x, y = (drawn(2, rows, n, dtype=torch.float32) for n in (columns, rows))
    y = y + y.mT
    if rows == 9:
        x[1, :, 3] = x[1, :, 0]  # of rank 4
    found, expected = compiled(factor_in_f32, x, y)(x, y), factor_in_f32(x, y)
    if rows == 9:
        found[8][1, 3:], expected[8][1, 3:] = 0, 0  # rounding errors, of any sign
        found[7][1, :, 3:], expected[7][1, :, 3:] = 0, 0
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(drawn(4, 4, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        factor = linalg.cholesky(positive(self.weight))
        system = linalg.solve(self.weight, x).square().sum()
        values, vectors = linalg.eigh(positive(self.weight))
        loss: Tensor = system + linalg.det(factor) + (vectors.square() @ values).log().sum()
        return loss


def test_gradients_go_through_factors() -> None:
    def loss(result: Tensor, target: Tensor) -> Tensor:
        return (result - target).sum()

    model, args = Loss(), (drawn(4, 2, dtype=torch.float32), torch.ones(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exported = turbine.aot.export_training_step(model, loss, optimizer=optimizer, args=args)
    _, gradients = exported.compile().gradients(*args)
    loss(model(args[0]), args[1]).backward()
    expected = model.weight.grad
    torch.testing.assert_close(gradients["weight"], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("factor", [linalg.cholesky, linalg.inv, linalg.qr, linalg.eigh])
def test_complex_matrices_are_refused_by_name(factor: Callable[..., object]) -> None:
    with pytest.raises((errors.UnsupportedOp, errors.UnsupportedOpInIR), match="linalg"):
        compiled(factor, torch.eye(2, dtype=torch.complex64))
