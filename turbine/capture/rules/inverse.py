"""The inverse of a small matrix by elimination, for exported programs.

Under torch.compile, factorizations run in PyTorch, which has LAPACK.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# The program is unrolled, one step per row.
LARGEST = 16


def inv_ex(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Gauss-Jordan elimination with partial pivoting."""
    size = x.shape[-1]
    if not isinstance(size, int) or size > LARGEST or x.is_complex():
        return NotImplemented
    rows = torch.arange(size, device=x.device)
    identity = torch.eye(size, dtype=x.dtype, device=x.device).expand(x.shape)
    both = torch.cat([x, identity], -1)
    info = torch.zeros(x.shape[:-2], dtype=torch.int32, device=x.device)
    for step in range(size):
        column = torch.where(rows >= step, both[..., step].abs(), -1.0)
        is_pivot = (rows == column.argmax(-1, keepdim=True)).unsqueeze(-1)
        pivot_row = torch.where(is_pivot, both, 0.0).sum(-2, keepdim=True)
        pivot = pivot_row[..., step : step + 1]
        info = torch.where((info == 0) & (pivot[..., 0, 0] == 0), step + 1, info)
        swapped = torch.where(is_pivot, both[..., step : step + 1, :], both)
        scaled = pivot_row / pivot
        reduced = swapped - swapped[..., step : step + 1] * scaled
        both = torch.where((rows == step).unsqueeze(-1), scaled, reduced)
    return both[..., size:].clone(), info.to(torch.int32)


def inv(x: Tensor) -> Tensor:
    """The inverse, with an assertion at run time; PyTorch 2.11 drops its own."""
    found = inv_ex(x)
    if found is NotImplemented:
        return NotImplemented
    result, info = found
    aten._assert_async.msg((info == 0).all(), "linalg.inv: the matrix is singular")
    return result


def determinant(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The determinant; 1 for an empty matrix."""
    if x.shape[-1] != 0:
        return NotImplemented
    pivots = x.new_zeros(x.shape[:-1], dtype=torch.int32)
    return x.new_ones(x.shape[:-2]), x.clone(), pivots


RULES: dict[Any, Callable[..., Any]] = {
    aten.linalg_inv.default: inv,
    aten.linalg_inv_ex.default: inv_ex,
    aten._linalg_det.default: determinant,
}
