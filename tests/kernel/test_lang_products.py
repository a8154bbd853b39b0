"""Matrix-vector products, vectorized along the contraction, and a batch times one matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, K, BM, BK, T = tkl.sym.M, tkl.sym.K, tkl.sym.BM, tkl.sym.BK, tkl.types.T


@tk.gen.kernel(M // BM, blocks={BM: 4, BK: 32})
def of_evens(
    a: tkl.InputBuffer[M, K, T], x: tkl.InputBuffer[K, T], y: tkl.OutputBuffer[M, tkl.f32]
) -> None:
    """Of the columns with even numbers; the first block begins before the first of them."""
    row = tkl.program_id(0) * BM

    @tkl.for_loop(0, (K + 5) // BK, init_args=[tkl.zeros((BM, 1), tkl.f32)])
    def product(k: Any, acc: Any) -> Any:
        start = k * BK - 5
        is_even = (start + tkl.arange(BK)[None]) % 2 == 0
        block = tkl.load(a, (row, start), (BM, BK), mask=is_even)
        return tkl.dot(block, tkl.load(x, (start,), (BK,))[:, None], acc)

    tkl.store(y, (row,), product[0][:, 0])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(5, 70), (4, 27), (3, 1)])
def test_a_matrix_times_a_column_skips_masked_lanes(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    a, x = torch.randn(rows, columns).to(dtype), torch.randn(columns).to(dtype)
    expected = (a[:, ::2].double() @ x[::2].double()).float()
    torch.testing.assert_close(of_evens(a, x), expected, rtol=1e-5, atol=1e-5)


@tk.gen.kernel(M // BM, blocks={BM: 4})
def row_times_rows(
    x: tkl.InputBuffer[K, tkl.i8], a: tkl.InputBuffer[M, K, tkl.i8], y: tkl.OutputBuffer[M, tkl.i32]
) -> None:
    row = tkl.program_id(0) * BM
    rows = tkl.transpose(tkl.load(a, (row, 0), (BM, K)))
    tkl.store(y, (row,), tkl.dot(tkl.load(x, (0,), (K,))[None], rows)[0])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("columns", [1, 3, 64, 70])
def test_a_row_times_a_transposed_matrix_matches_torch(columns: int) -> None:
    x, a = (
        torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((columns,), (6, columns))
    )
    assert row_times_rows(x, a).tolist() == (a.long() @ x.long()).tolist()


N, B, BB, BN = tkl.symbols("N B BB BN")


@tk.gen.kernel(N // BN, M // BM, B // BB, blocks={BB: 2, BM: 8, BN: 8})
def batch_times_matrix(
    a: tkl.InputBuffer[B, M, K, T],
    b: tkl.InputBuffer[K, N, T],
    y: tkl.OutputBuffer[B, M, N, tkl.f32],
) -> None:
    column, row, batch = (
        tkl.program_id(0) * BN,
        tkl.program_id(1) * BM,
        tkl.program_id(2) * BB,
    )
    left = tkl.load(a, (batch, row, 0), (BB, BM, K))
    tkl.store(y, (batch, row, column), tkl.dot(left, tkl.load(b, (0, column), (K, BN))))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(4, 16, 12, 8), (3, 11, 5, 13)], ids=["whole", "edges"])
@pytest.mark.parametrize("interpreted", [False, True], ids=["compiled", "interpreted"])
def test_a_batch_times_a_matrix_matches_torch(
    dtype: torch.dtype, sizes: tuple[int, ...], interpreted: bool
) -> None:
    batch, rows, depth, columns = sizes
    a, b = torch.randn(batch, rows, depth).to(dtype), torch.randn(depth, columns).to(dtype)
    run = batch_times_matrix.interpret if interpreted else batch_times_matrix
    torch.testing.assert_close(run(a, b), a.float() @ b.float())


# The end of a matmul in registers

N, BN = tkl.sym.N, tkl.sym.BN


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 32, BN: 32})
def scaled(
    a: tkl.InputBuffer[M, K, T],
    b: tkl.InputBuffer[K, N, T],
    bias: tkl.InputBuffer[N, tkl.f32],
    c: tkl.OutputBuffer[M, N, T],
) -> None:
    """Starts from a computed tile, and is scaled, moved and rounded at the end."""
    row, column = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    start = tkl.load(bias, (column,), (BN,)) * tkl.full((BM, BN), 2.0, tkl.f32)
    left, right = tkl.load(a, (row, 0), (BM, K)), tkl.load(b, (0, column), (K, BN))
    product = tkl.dot(left, right, start) * 0.5 + tkl.load(bias, (column,), (BN,))
    tkl.store(c, (row, column), product.to(left.dtype))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (33, 32), (32, 50)])
def test_elementwise_ops_after_a_matmul(rows: int, columns: int, dtype: torch.dtype) -> None:
    a, b = torch.randn(rows, 20).to(dtype), torch.randn(20, columns).to(dtype)
    bias = torch.randn(columns)
    expected = ((a.float() @ b.float() + 2 * bias) * 0.5 + bias).to(dtype)
    for found in (scaled(a, b, bias), scaled.interpret(a, b, bias)):
        torch.testing.assert_close(
            found, expected, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-4
        )
    is_whole = rows % 32 == 0 and columns % 32 == 0
    plan = scaled.text("plan", a, b, bias).splitlines()
    assert any(line.startswith("store") and "register tile" in line for line in plan) == is_whole


@tk.gen.kernel(M // BM, blocks={BM: 16})
def stored_twice(
    a: tkl.InputBuffer[M, K, tkl.f32],
    b: tkl.InputBuffer[K, N, tkl.f32],
    c: tkl.OutputBuffer[M, N, tkl.f32],
    d: tkl.OutputBuffer[M, N, tkl.f32],
) -> None:
    """The second matmul reads what a store has written between it and its own store."""
    row = tkl.program_id(0) * BM
    left, right = tkl.load(a, (row, 0), (BM, K)), tkl.load(b, (0, 0), (K, N))
    first = tkl.dot(left, right)
    second = tkl.dot(left, right) * 2
    tkl.store(c, (row, 0), first + 1)
    tkl.store(d, (row, 0), second + tkl.load(c, (row, 0), (BM, N)) + first)


def test_matmuls_with_several_uses_and_stores_between() -> None:
    a, b = torch.randn(32, 12), torch.randn(12, 16)
    product = a @ b
    for c, d in (stored_twice(a, b), stored_twice.interpret(a, b)):
        torch.testing.assert_close(c, product + 1)
        torch.testing.assert_close(d, 4 * product + 1)


def with_rows(height: int, *, is_triangular: bool) -> tk.Kernel:
    """a @ b with so many rows in a program, perhaps of the blocks up to the diagonal of a."""

    @tk.gen.kernel(M // BM, blocks={BM: height, BK: 64})
    def product(
        a: tkl.InputBuffer[M, K, tkl.f32],
        b: tkl.InputBuffer[K, N, tkl.f32],
        c: tkl.OutputBuffer[M, N, tkl.f32],
    ) -> None:
        row = tkl.program_id(0) * BM
        stop = (row + BM) // BK if is_triangular else K // BK

        @tkl.for_loop(0, stop, init_args=[tkl.zeros((BM, N), tkl.f32)])
        def total(k: Any, acc: Any) -> Any:
            left = tkl.load(a, (row, k * BK), (BM, BK))
            return tkl.dot(left, tkl.load(b, (k * BK, 0), (BK, N)), acc)

        tkl.store(c, (row, 0), total[0])

    return product


@pytest.mark.parametrize("is_triangular", [False, True])
@pytest.mark.parametrize("height", [8, 64])
def test_even_programs_with_large_scratch_memory_have_a_workgroup_for_each_worker(
    height: int, is_triangular: bool
) -> None:
    a, b = torch.randn(256, 256), torch.randn(256, 160)
    kernel = with_rows(height, is_triangular=is_triangular)
    factor = a.clone()
    if is_triangular:
        for row in range(0, 256, height):  # blocks of 64 columns
            factor[row : row + height, -(-(row + height) // 64) * 64 :] = 0
    torch.testing.assert_close(kernel(a, b), factor @ b, rtol=1e-4, atol=1e-4)
    is_limited = '"concurrency"' in kernel.text("mlir", a, b)
    assert is_limited == (height == 64 and not is_triangular)
