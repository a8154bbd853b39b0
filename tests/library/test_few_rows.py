"""Products of few rows with a matrix, however it is stored; and sums of products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import turbine.kernel as tk
from tests.library.placing import AVX512, NEON, count, exported, placed
from tests.models import Fn, compiled
from turbine.library.few_rows import products_of_columns, summands_of_rows
from turbine.target import Target

aten = torch.ops.aten


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 37, 48), (4, 64, 50), (3, 1, 1)])
def test_kernels_match_torch(rows: int, depth: int, columns: int) -> None:
    x, matrix = torch.randn(2, rows, depth), torch.randn(2, depth, columns)
    bias = torch.randn(columns)
    by_column = x, matrix.transpose(1, 2).contiguous(), bias
    for kernel in (products_of_columns, products_of_columns.interpret):
        torch.testing.assert_close(kernel(*by_column), x @ matrix + bias)
    by_row = summands_of_rows.using(BN=64, BK=16)
    for kernel in (by_row, by_row.interpret):
        torch.testing.assert_close(kernel(x, matrix).sum(1), x @ matrix)


def matrix_times_vector(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.mv(matrix, x[0])


def transpose_times_vector(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.mv(matrix.t(), x[1, :40])


def row_times_matrix(x: Tensor, matrix: Tensor) -> Tensor:
    return x[:, :40] @ matrix


def row_times_transpose(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.addmm(matrix[:, 0], x, matrix.t())


def matrix_times_columns(x: Tensor, matrix: Tensor) -> Tensor:
    return matrix @ x.t()


def batch_times_matrix(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.bmm(x[:, :40].unsqueeze(1), matrix.expand(2, 40, 600) + x[0, 0])


def batch_times_transpose(x: Tensor, matrix: Tensor) -> Tensor:
    return x.unsqueeze(1) @ torch.cat([matrix, matrix]).view(2, 40, 600).transpose(1, 2)


FUNCTIONS = [
    (matrix_times_vector, products_of_columns),
    (transpose_times_vector, summands_of_rows),
    (row_times_matrix, summands_of_rows),
    (row_times_transpose, products_of_columns),
    (matrix_times_columns, products_of_columns),
    (batch_times_transpose, products_of_columns),
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "kernel"), FUNCTIONS, ids=[function.__name__ for function, _ in FUNCTIONS]
)
def test_few_rows_read_a_matrix_as_it_is(
    function: Callable[[Tensor, Tensor], Tensor],
    kernel: tk.Kernel,
    dtype: torch.dtype,
) -> None:
    x, matrix = torch.randn(2, 600).to(dtype), torch.randn(40, 600).to(dtype)
    program = placed(exported(Fn(function), x, matrix))
    calls = [str(node.target) for node in program.graph.graph.nodes]
    assert sum(kernel.__name__ in call for call in calls) == 1
    result = compiled(function, x, matrix)(x, matrix)
    assert result.dtype == dtype
    exact = function(x.double(), matrix.double())
    torch.testing.assert_close(result.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_a_computed_matrix_is_left_to_the_loop_that_computes_it() -> None:
    program = exported(Fn(batch_times_matrix), torch.randn(2, 600), torch.randn(40, 600))
    assert placed(program) is program


def test_a_dynamic_matrix_is_read_as_it_is() -> None:
    x, matrix, longer = torch.randn(2, 64), torch.randn(50, 64), torch.randn(99, 64)
    sizes: tuple[object, ...] = (({}, {0: torch.export.Dim("columns", min=33)}),)
    artifact = compiled(lambda x, matrix: x @ matrix.t(), x, matrix, dynamic_shapes=sizes)
    torch.testing.assert_close(artifact(x, longer), x @ longer.t())


class TwoProducts(nn.Module):
    """One product with a bias and one without, straight after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 100)
        self.second = nn.Linear(100, 40, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


@pytest.mark.parametrize("target", [NEON, AVX512], ids=["NEON", "AVX512"])
def test_few_rows_read_a_weight_as_it_is(target: Target) -> None:
    found = placed(exported(TwoProducts(), torch.randn(4, 64)), target)
    assert count(found, products_of_columns.op.op) == 2
    assert count(found, aten.clone.default, aten.constant_pad_nd.default) == 0


class RowMajor(nn.Module):
    """A weight that is not transposed: its columns are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 96))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_weights_stored_row_by_row_are_not_read_so() -> None:
    program = exported(RowMajor(), torch.randn(4, 64))
    assert placed(program, NEON) is program


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_sums_of_products_match_torch(axis: int | tuple[int, int], dtype: torch.dtype) -> None:
    x, y = torch.randn(128, 96, dtype=dtype), torch.randn(96, dtype=dtype)
    x[3, 5], x[4, 6], x[5, 7], y[7] = torch.nan, torch.inf, 0, torch.inf

    def total(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * y).sum(axis), (x * x).sum(axis)

    program = exported(Fn(total), x, y)
    assert count(placed(program), aten.where.self) == 2
    torch.testing.assert_close(compiled(total, x, y)(x, y), total(x, y), equal_nan=True)
