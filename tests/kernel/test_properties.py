"""Interpreter, compiled code and torch agree for any size, block size and dtype."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.triton_interpreter import triton_interpreter
from turbine import config
from turbine.dtypes import Dtype
from turbine.kernel.trace.types import DTYPES

B, BM, BN, BK = tkl.sym.B, tkl.sym.BM, tkl.sym.BN, tkl.sym.BK
M, N, K, P = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.P
T, U = tkl.types.T, tkl.types.U

few = settings(max_examples=12, derandomize=True, database=None, deadline=None)
# None, one, less than a tile, a tile, more than one, several and a part.
SIZES = st.sampled_from((0, 1, 5, 8, 9, 16, 33, 40))
# The same along several axes: few of them divide tiles, which is code of its own for each.
SHAPES = ((1, 1, 1), (9, 21, 5), (33, 9, 17), (21, 33, 41), (0, 33, 9), (16, 32, 0))
SEEDS = st.integers(0, 999)
FLOAT8 = ("f8e5m2", "f8e4m3fn", "f8e5m2fnuz", "f8e4m3fnuz")
NAMES = sorted(set(DTYPES) - {"index"})


@pytest.fixture(autouse=True, scope="module")
def guard_pages() -> Iterator[None]:
    """Put arguments between guard pages."""
    with config.override(guard=True):
        yield


def numbers(seed: int, *shape: int, dtype: Dtype = tkl.f32) -> Tensor:
    """Small integers of any type: sums of them are exact, and many are equal."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype.kind in ("uint", "bool") else -4
    return torch.randint(low, 5, shape, generator=generator).to(dtype.torch)


def agree(kernel: Any, args: tuple[Any, ...], *expected: Tensor, tolerance: float = 0.0) -> None:
    """Check the interpreter and compiled code, for CPUs and GPUs, against the expected results."""
    runs = [kernel.interpret, kernel]
    if _runs_in_triton([*args, *expected]):
        runs.append(partial(triton_interpreter().call, kernel))
    for run in runs:
        given = run(*args)
        results = given if isinstance(given, tuple) else (given,)
        for result, wanted in zip(results, expected, strict=True):
            assert result.dtype == wanted.dtype
            assert_close(result, wanted, tolerance)


def _runs_in_triton(values: Sequence[Any]) -> bool:
    """Whether Triton's interpreter has the dtypes."""
    return all(v.dtype is not torch.bfloat16 for v in values if isinstance(v, Tensor))


def assert_close(result: Tensor, wanted: Tensor, tolerance: float = 0.0) -> None:
    if result.dtype.itemsize == 1 and result.dtype.is_floating_point:
        result, wanted = result.float(), wanted.float()
    torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


# Blocks


@tk.gen.kernel(N // B, blocks={B: 8})
def mixed(
    x: tkl.InputBuffer[N, T],
    y: tkl.InputBuffer[N, T],
    z: tkl.OutputBuffer[N, T],
    less: tkl.OutputBuffer[N, tkl.bool],
) -> None:
    start = tkl.program_id(0) * B
    a, b = tkl.load(x, (start,), (B,)), tkl.load(y, (start,), (B,))
    tkl.store(z, (start,), tkl.where(a < b, tkl.maximum(a, b), tkl.minimum(a, 3)))
    tkl.store(less, (start,), a <= b)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NAMES)
def test_comparisons_and_where_match_torch(name: str) -> None:
    dtype = DTYPES[name]
    for size, seed in ((0, 0), (21, 1), (40, 2)):
        x, y = numbers(seed, size, dtype=dtype), numbers(seed + 9, size, dtype=dtype)
        a, b = x.double(), y.double()
        three = torch.tensor(True if dtype.kind == "bool" else 3).to(dtype.torch).double()
        chosen = torch.where(a < b, torch.maximum(a, b), torch.minimum(a, three))
        agree(mixed, (x, y), chosen.to(dtype.torch), a <= b)


@tk.gen.kernel(N // B, blocks={B: 8})
def shifted(
    x: tkl.InputBuffer[P, tkl.f32],
    like: tkl.InputBuffer[N, tkl.f32],
    by: tkl.i64,
    y: tkl.OutputBuffer[N, tkl.f32],
) -> None:
    start = tkl.program_id(0) * B
    tkl.store(y, (start,), tkl.load(x, (start + by,), (B,), other=7.0))


@few
@given(SIZES, SIZES, st.sampled_from((0, 1, -1, 3, -9, 100, -100)), SEEDS)
def test_blocks_at_any_offset_match_torch(size: int, count: int, by: int, seed: int) -> None:
    x = numbers(seed, size)
    places = torch.arange(count) + by
    inside = (places >= 0) & (places < size)
    wanted = torch.full((count,), 7.0)
    wanted[inside] = x[places[inside]]
    agree(shifted, (x, torch.zeros(count), by), wanted)


@tk.gen.kernel(N // B, blocks={B: 8})
def strided(
    x: tkl.InputBuffer[P, tkl.f32],
    like: tkl.InputBuffer[N, tkl.f32],
    step: tkl.i64,
    by: tkl.i64,
    y: tkl.OutputBuffer[N, tkl.f32],
    kept: tkl.OutputBuffer[N, tkl.f32].filled(-1.0),
) -> None:
    start = tkl.program_id(0) * B
    places = (tkl.arange(B) + start) * step + by
    tkl.store(y, (start,), tkl.load(x, (places,), other=7.0))
    tkl.store(kept, (start,), tkl.load(x, (places,)))


@few
@given(SIZES, SIZES, st.sampled_from((0, 1, 2, -1, 2**60)), st.sampled_from((0, -3, 5)), SEEDS)
def test_gathers_mask_off_out_of_bounds_indices(
    size: int, count: int, step: int, by: int, seed: int
) -> None:
    x = numbers(seed, size)
    places = torch.arange(count) * step + by
    inside = (places >= 0) & (places < size)
    read, kept = torch.full((count,), 7.0), torch.full((count,), -1.0)
    read[inside] = kept[inside] = x[places[inside]]
    agree(strided, (x, torch.zeros(count), step, by), read, kept)


@tk.gen.kernel(N // B, blocks={B: 8})
def scattered(
    x: tkl.InputBuffer[N, tkl.f32],
    places: tkl.InputBuffer[N, tkl.i64],
    like: tkl.InputBuffer[P, tkl.f32],
    y: tkl.OutputBuffer[P, tkl.f32].filled(9.0),
) -> None:
    start = tkl.program_id(0) * B
    values = tkl.load(x, (start,), (B,))
    tkl.store(y, (tkl.load(places, (start,), (B,)),), values, mask=values > 0, check=False)


@few
@given(SIZES, SIZES, SEEDS)
def test_scatters_skip_out_of_bounds_indices(size: int, count: int, seed: int) -> None:
    x = numbers(seed, size)
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(size + 4, generator=generator)[:size] * 2 - 3
    taken = (x > 0) & (places >= 0) & (places < count)
    wanted = torch.full((count,), 9.0)
    wanted[places[taken]] = x[taken]
    agree(scattered, (x, places, torch.zeros(count)), wanted)


def turned(
    x: tkl.InputBuffer[M, N, tkl.f32],
    y: tkl.OutputBuffer[N, M, tkl.f32],
    rows: tkl.OutputBuffer[M, N, tkl.f32],
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    tile = tkl.load(x, (i, j), (BM, BN))
    tkl.store(y, (j, i), tkl.transpose(tile) * 2)
    tkl.store(rows, (i, j), tile + tkl.load(x, (i, 0), (BM, 1)))


TURNED = [
    tk.gen.kernel(M // BM, N // BN, blocks={BM: rows, BN: columns})(turned)
    for rows, columns in ((8, 16), (3, 1), (64, 5))
]


@pytest.mark.sweep(5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", TURNED, ids=["8x16", "3x1", "64x5"])
def test_any_block_size_covers_any_tensor(kernel: Any, shape: tuple[int, int, int]) -> None:
    x = numbers(0, *shape[:2])
    agree(kernel, (x,), (x * 2).T, x + x[:, :1])


# Reductions, products and loops


@tk.gen.kernel(M // BM, blocks={BM: 4})
def reduced(
    x: tkl.InputBuffer[M, N, tkl.f32],
    total: tkl.OutputBuffer[M, tkl.f32],
    most: tkl.OutputBuffer[M, tkl.f32],
    place: tkl.OutputBuffer[M, tkl.i64],
    positive: tkl.OutputBuffer[M, tkl.f32],
) -> None:
    i = tkl.program_id(0) * BM
    tile = tkl.load(x, (i, 0), (BM, N))
    tkl.store(total, (i,), tkl.sum(tile, 1))
    tkl.store(most, (i,), tkl.max(tile, 1))
    tkl.store(place, (i,), tkl.argmin(tile, 1))
    positives = tkl.load(x, (i, 0), (BM, N), mask=tile > 0, other=0)
    tkl.store(positive, (i,), tkl.sum(positives, 1))


@few
@given(SIZES, SIZES, SEEDS)
def test_reductions_of_any_length_match_torch(rows: int, columns: int, seed: int) -> None:
    x = numbers(seed, rows, columns)
    most = x.amax(1) if columns else torch.full((rows,), float("-inf"))
    if columns:
        lowest = torch.where(x == x.amin(1, keepdim=True), torch.arange(columns), columns).amin(1)
    else:
        lowest = torch.zeros(rows, dtype=torch.int64)
    agree(reduced, (x,), x.sum(1), most, lowest, x.clamp(min=0).sum(1))


@tk.gen.kernel(N // B, blocks={B: 8})
def blocks_of_rows(
    x: tkl.InputBuffer[M, N, tkl.f32],
    total: tkl.OutputBuffer[N, tkl.f32],
    most: tkl.OutputBuffer[N, tkl.f32],
    last: tkl.OutputBuffer[N, tkl.f32],
) -> None:
    j = tkl.program_id(0) * B
    none = tkl.full((B,), float("-inf"), tkl.f32)

    @tkl.for_loop(0, M // BM, init_args=[tkl.zeros((B,), tkl.f32), none, none])
    def body(k: Any, total: Any, most: Any, last: Any) -> Any:
        tile = tkl.load(x, (k * BM, j), (BM, B))
        return total + tkl.sum(tile, 0), tkl.maximum(most, tkl.max(tile, 0)), most

    tkl.store(total, (j,), body[0])
    tkl.store(most, (j,), body[1])
    tkl.store(last, (j,), body[2])


@few
@given(SIZES, SIZES, SEEDS)
def test_loops_carry_tiles_over_partial_blocks(rows: int, columns: int, seed: int) -> None:
    x = numbers(seed, rows, columns)
    ended = torch.cat([torch.full((1, columns), float("-inf")), x])
    blocks = -(-rows // 3)
    before = ended[: 1 + 3 * max(blocks - 1, 0)].amax(0)
    agree(blocks_of_rows.using(BM=3), (x,), x.sum(0), ended.amax(0), before)


def product(
    a: tkl.InputBuffer[M, K, T],
    b: tkl.InputBuffer[N, K, T],
    c: tkl.OutputBuffer[M, N, tkl.f32],
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def body(k: Any, total: Any) -> Any:
        x, y = tkl.load(a, (i, k * BK), (BM, BK)), tkl.load(b, (j, k * BK), (BN, BK))
        return tkl.dot(x, tkl.transpose(y), total)

    tkl.store(c, (i, j), body[0])


PRODUCTS = [
    tk.gen.kernel(M // BM, N // BN, blocks={BM: rows, BN: columns, BK: depth})(product)
    for rows, columns, depth in ((8, 16, 8), (5, 3, 7))
]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", [0, 1], ids=["f32", "f16"])
def test_matmuls_of_any_size_match_torch(which: int, shape: tuple[int, int, int]) -> None:
    (rows, columns, depth), kernel = shape, PRODUCTS[which]
    dtype = (tkl.f32, tkl.f16)[which]
    a, b = numbers(0, rows, depth, dtype=dtype), numbers(1, columns, depth, dtype=dtype)
    agree(kernel, (a, b), a.float() @ b.float().T)


# Tensors as they come


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 4, BN: 8})
def added(x: tkl.InOutBuffer[M, N, tkl.f32], y: tkl.InputBuffer[M, N, tkl.f32]) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    both = tkl.load(x, (i, j), (BM, BN)) + tkl.load(y, (i, j), (BM, BN))
    tkl.store(x, (i, j), both)


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.T,
    lambda x: x[1:, 1:],
    lambda x: x[::2, ::3],
    lambda x: x[:0],
]


@few
@given(st.sampled_from(VIEWS), st.sampled_from((1, 6, 17)), st.sampled_from((1, 9)), SEEDS)
def test_in_out_views_are_updated_in_place(
    view: Callable[[Tensor], Tensor], rows: int, columns: int, seed: int
) -> None:
    base = numbers(seed, rows, columns)
    for run in (added.interpret, added):
        tensor, wanted = base.clone(), base.clone()
        shared = view(tensor)
        view(wanted).add_(view(base))
        run(shared, shared)
        torch.testing.assert_close(tensor, wanted, rtol=0, atol=0)


# Element types


def _dtype(buffer: Any) -> Any:
    return buffer.dtype


@tk.gen.kernel(N // B, blocks={B: 64})
def converted(
    x: tkl.InputBuffer[N, T], like: tkl.InputBuffer[N, U], y: tkl.OutputBuffer[N, U]
) -> None:
    start = tkl.program_id(0) * B
    tkl.store(y, (start,), tkl.load(x, (start,), (B,)).to(_dtype(y)))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("to", NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_casts_between_all_dtypes_match_torch(name: str, to: str) -> None:
    dtype, other = DTYPES[name], DTYPES[to]
    x = numbers(3, 77, dtype=dtype)
    if dtype.kind == "float" and other.kind == "uint":
        # PyTorch makes a negative one 0 on aarch64, and another number on x86_64.
        x = x.float().abs().to(dtype.torch)
    agree(converted, (x, torch.empty(77, dtype=other.torch)), x.to(other.torch))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", FLOAT8)
def test_eight_bit_floats_round_as_in_torch(name: str) -> None:
    dtype = DTYPES[name].torch
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    bits = torch.randint(-(2**31), 2**31, (9999,), generator=torch.Generator().manual_seed(0))
    x = torch.cat([halves.float(), bits.to(torch.int32).view(torch.float32)])
    rounded = converted(x, torch.empty(len(x), dtype=dtype))
    assert_close(rounded, x.to(dtype))
    differs = rounded.float().signbit() != x.to(dtype).float().signbit()
    assert not (differs & ~rounded.float().isnan()).any()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", FLOAT8)
def test_eight_bit_floats_convert_as_in_torch(name: str) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(DTYPES[name].torch)
    assert_close(converted(x, torch.empty(256)), x.float())


# Expressions


UNARY: list[Callable[[Any], Any]] = [lambda x: -x, abs, lambda x: x * x, lambda x: x % 3]
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x // (y + 9),
]


def expression(choose: random.Random, depth: int) -> Callable[[Any, Any, Any], Any]:
    """A function of three tiles, or tensors, put together by chance."""
    if depth == 0:
        place = choose.randrange(3)
        return lambda *leaves: leaves[place]
    if choose.random() < 0.3:
        unary, inner = choose.choice(UNARY), expression(choose, depth - 1)
        return lambda *leaves: unary(inner(*leaves))
    binary = choose.choice(BINARY)
    left, right = expression(choose, depth - 1), expression(choose, depth - 1)
    return lambda *leaves: binary(left(*leaves), right(*leaves))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(40))
def test_random_expressions_match_torch(seed: int) -> None:
    choose = random.Random(seed)
    compute, dtype = expression(choose, 4), DTYPES[choose.choice(("f32", "i32", "i64", "f64"))]

    @tk.gen.kernel(M // BM, N // BN, blocks={BM: 4, BN: 8})
    def kernel(
        x: tkl.InputBuffer[M, N, T],
        y: tkl.InputBuffer[N, T],
        z: tkl.InputBuffer[M, T],
        out: tkl.OutputBuffer[M, N, T],
    ) -> None:
        i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN
        a = tkl.load(x, (i, j), (BM, BN))
        b, c = tkl.load(y, (j,), (BN,)), tkl.load(z, (i,), (BM,))[:, None]
        tkl.store(out, (i, j), compute(a, b, c) + a * 0)

    for rows, columns in ((1, 1), (6, 21), (0, 3)):
        x, y = numbers(seed, rows, columns, dtype=dtype), numbers(seed, columns, dtype=dtype)
        z = numbers(seed + 1, rows, dtype=dtype)
        wanted = compute(x, y, z[:, None]) + x * 0
        agree(kernel, (x, y, z), wanted.expand(rows, columns), tolerance=1e-6)


@tk.gen.kernel(M)
def first_of_next_row(
    x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[M, tkl.i64].filled(-7)
) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i + 1, 0), (1, 16))
    tkl.store(y, (i,), tkl.reshape(tkl.argmin(row, axis=1), (1,)))


def test_a_reduction_beyond_the_buffer_reads_nothing() -> None:
    x = numbers(0, 16, 2)
    assert torch.equal(first_of_next_row(x), first_of_next_row.interpret(x))


@tk.gen.kernel(M)
def count_programs(x: tkl.InOutBuffer[M, tkl.i32]) -> None:
    i = tkl.program_id(0)
    tkl.store(x, (i,), tkl.load(x, (i,), (1,)) + 1)


@pytest.mark.parametrize("programs", [0, 1, 7, 8, 31, 32, 33, 63, 65, 100, 257])
def test_every_program_of_a_grid_runs_once(programs: int) -> None:
    found = torch.arange(programs, dtype=torch.int32)
    count_programs(found)
    assert found.tolist() == list(range(1, programs + 1))
