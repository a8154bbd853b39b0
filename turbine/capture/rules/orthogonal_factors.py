"""QR, eigenvectors of symmetric matrices, singular values and pseudoinverses, in exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from turbine.capture.rules.linear_algebra import Triple, call_by_matrix, identity_like, of_real
from turbine.capture.sizes import is_empty

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]


def _householder(x: Tensor) -> Pair:
    """The columns of a factored matrix as rows, and the scale of each reflection."""
    columns, scales = call_by_matrix("householder", x.shape[:-2], x.mT)
    return columns, scales[..., : torch.sym_min(*x.shape[-2:])]


def _apply(vectors: Tensor, scales: Tensor, columns: Tensor, *, backward: bool) -> Tensor:
    """Apply reflections to columns, which are rows here, as vectors are."""
    vectors = vectors[..., : scales.shape[-1], :]
    batch = vectors.shape[:-2]
    options = {"backward": backward}
    applied: Tensor = call_by_matrix("reflect", batch, vectors, scales, columns, **options)
    return applied


def _first_columns(vectors: Tensor, scales: Tensor, count: Any) -> Tensor:
    """The first columns of the product of reflections."""
    rows = vectors.shape[-1]
    start = torch.eye(count, rows, dtype=vectors.dtype, device=vectors.device)
    start = start.expand(*vectors.shape[:-2], count, rows)
    return _apply(vectors, scales, start, backward=True).mT


@of_real
def geqrf(x: Tensor) -> Pair:
    """The reflections that make a matrix triangular."""
    columns, scales = _householder(x)
    return columns.mT.clone(), scales.clone()


@of_real
def householder_product(vectors: Tensor, scales: Tensor) -> Tensor:
    """The first columns of a product of reflections."""
    return _first_columns(vectors.mT, scales, vectors.shape[-1])


@of_real
def ormqr(
    vectors: Tensor, scales: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """The product of reflections and a matrix."""
    columns = other.mT if left else other
    product = _apply(vectors.mT, scales, columns, backward=left != transpose)
    return product.mT if left else product


@of_real
def qr(x: Tensor, mode: str = "reduced") -> Pair:
    """Q and R by reflections."""
    columns, scales = _householder(x)
    count = x.shape[-2] if mode == "complete" else scales.shape[-1]
    r = columns.mT[..., :count, :].triu()
    return (x.new_empty(0) if mode == "r" else _first_columns(columns, scales, count)), r


def _rotate(columns: Tensor) -> Pair:
    """Orthogonal combinations of columns, which are rows here, and their factors."""
    rounding = torch.finfo(columns.dtype).eps
    rotated: Pair = call_by_matrix(
        "rotate",
        columns.shape[:-2],
        columns,
        identity_like(columns.mT[..., :0, :]),
        rounding=rounding,
        tolerance=_ROUNDINGS * rounding,
    )
    return rotated


# Of a product of two rows, which are summed in several parts.
_ROUNDINGS = 16


def _take(rows: Tensor, order: Tensor) -> Tensor:
    return rows.gather(-2, order.unsqueeze(-1).expand(*order.shape, rows.shape[-1]))


@of_real
def eigh(x: Tensor, uplo: str = "L", compute_v: bool = True) -> Pair:
    """Eigenvalues in order and eigenvectors of one triangle.

    A matrix is shifted until no eigenvalue is negative: then they are its singular values.
    """
    if is_empty(x):
        return x.new_empty(x.shape[:-1]), x.clone()
    half = x.tril() if uplo.upper() == "L" else x.triu().mT
    symmetric = half + half.tril(-1).mT
    _, vectors = _rotate(symmetric + _bound(symmetric) * identity_like(x))
    values = ((vectors @ symmetric) * vectors).sum(-1)
    values, order = values.sort(-1)
    return values, (_take(vectors, order).mT if compute_v else x.new_empty(0))


def _bound(x: Tensor) -> Tensor:
    """A bound on the size of eigenvalues: near it, since a shift costs accuracy."""
    largest = _largest_row_sum(x)
    scale = torch.where(largest == 0, 1.0, largest)
    power = x / scale
    for _ in range(_SQUARINGS):
        power = power @ power
    return 1.01 * scale * _largest_row_sum(power) ** (0.5**_SQUARINGS)


_SQUARINGS = 2


def _largest_row_sum(x: Tensor) -> Tensor:
    return x.abs().sum(-1).amax(-1)[..., None, None]


@of_real
def svd(
    x: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Triple:
    """U, singular values in descending order, and V transposed, by one-sided Jacobi."""
    rows, columns = x.shape[-2:]
    if guard_or_false(rows < columns):
        v, values, uh = svd(x.mT, full_matrices, compute_uv)
        return (uh.mT, values, v.mT) if compute_uv else (v, values, uh)
    rotated, factors = _rotate(x.mT)
    values, order = torch.linalg.vector_norm(rotated, dim=-1).sort(-1, descending=True)
    values = values[..., : torch.sym_min(rows, columns)]
    if not compute_uv:
        return x.new_empty(0), values, x.new_empty(0)
    # Reflections also give the columns of U for singular values of 0, and those after them.
    reflections, scales = call_by_matrix("householder", x.shape[:-2], _take(rotated, order))
    u = _first_columns(reflections, scales, rows if full_matrices else columns)
    signs = torch.where(reflections.diagonal(0, -2, -1) < 0, -1, 1).to(x.dtype)
    signs = torch.nn.functional.pad(signs, (0, u.shape[-1] - columns), value=1.0)
    return u * signs.unsqueeze(-2), values, _take(factors, order)


@of_real
def pinv(
    x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """The pseudoinverse: singular values up to a tolerance count as 0."""
    if is_empty(x):
        return x.mT.clone()
    if hermitian:
        values, u = eigh(x)
        vh = u.mT
    else:
        u, values, vh = svd(x)
    sizes = values.abs()
    largest = sizes.amax(-1, keepdim=True)
    absolute = x.new_zeros(()) if atol is None else atol.to(x.dtype)
    if rtol is None:
        default = torch.finfo(x.dtype).eps * torch.sym_max(*x.shape[-2:])
        rtol = torch.where(absolute > 0, 0.0, default)
    limit = torch.maximum(absolute.unsqueeze(-1), rtol.to(x.dtype).unsqueeze(-1) * largest)
    inverses = torch.where(sizes > limit, 1 / values, 0.0)
    result: Tensor = (vh.mT * inverses.unsqueeze(-2)) @ u.mT
    return result


RULES: dict[Any, Callable[..., Any]] = {
    aten.geqrf.default: geqrf,
    aten.linalg_householder_product.default: householder_product,
    aten.ormqr.default: ormqr,
    aten.linalg_qr.default: qr,
    aten._linalg_eigh.default: eigh,
    aten._linalg_svd.default: svd,
    aten.linalg_pinv.atol_rtol_tensor: pinv,
}
