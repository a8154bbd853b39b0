"""Masked lanes behave like lanes out of bounds, as in numpy.ma."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ma
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, K, BM, BN, BK = tkl.symbols("M N K BM BN BK")
P, Q = tkl.symbols("P Q")
KEPT = -7  # what an output holds where nothing is stored


def both_ways(kernel: Any, *args: Any) -> list[tuple[Tensor, ...]]:
    """What the interpreter and compiled code give."""
    results = [run(*args) for run in (kernel.interpret, kernel)]
    return [given if isinstance(given, tuple) else (given,) for given in results]


def assert_equal(results: list[tuple[Tensor, ...]], *expected: Any) -> None:
    """Check both results against numpy.ma; masked elements are not written."""
    for given in results:
        for result, wanted in zip(given, expected, strict=True):
            np.testing.assert_allclose(result.numpy(), ma.filled(wanted, KEPT), rtol=1e-5)


def masked_numbers(seed: int, *shape: int) -> tuple[Tensor, Tensor, Any]:
    """Small numbers, a mask with some full rows and columns, and both as numpy.ma."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, shape).astype(np.float32)
    live = rng.random(shape) < 0.6
    live[1::3] = False
    live[..., 2::4] = False
    return torch.from_numpy(values), torch.from_numpy(live), ma.array(values, mask=~live)


@tk.gen.kernel(M // BM, blocks={BM: 4})
def rows(
    x: tkl.InputBuffer[M, N, tkl.f32],
    live: tkl.InputBuffer[M, tkl.bool],
    total: tkl.OutputBuffer[M, tkl.f32].filled(KEPT),
    most: tkl.OutputBuffer[M, tkl.f32].filled(KEPT),
    place: tkl.OutputBuffer[M, tkl.i64].filled(KEPT),
    product: tkl.OutputBuffer[M, tkl.f32].filled(KEPT),
) -> None:
    i = tkl.program_id(0) * BM
    is_live = tkl.load(live, (i,), (BM,))
    tile = tkl.load(x, (i, 0), (BM, N), mask=is_live[:, None])
    tkl.store(total, (i,), tkl.sum(tile, 1))
    tkl.store(most, (i,), tkl.max(tile, 1) + 1)
    tkl.store(place, (i,), tkl.argmin(tile, 1))
    ones = tkl.full((N, 1), 1, tkl.f32)
    tkl.store(product, (i,), tkl.dot(tile, ones)[:, 0])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("columns", [1, 5, 33])
def test_masked_rows_are_not_written(columns: int) -> None:
    x = torch.arange(9.0 * columns).reshape(9, columns) % 11 - 5
    live = torch.tensor([True, False, True, True, False, False, False, False, True])
    dead = ~live.numpy()
    results = both_ways(rows, x, live)
    wanted = [x.sum(1), x.amax(1) + 1, x.argmin(1), x.sum(1)]
    assert_equal(results, *(ma.array(one.numpy(), mask=dead) for one in wanted))


@tk.gen.kernel(1, blocks={BM: 8, BN: 16})
def reductions(
    x: tkl.InputBuffer[M, N, tkl.f32],
    live: tkl.InputBuffer[P, Q, tkl.bool],
    along_rows: tkl.OutputBuffer[BM, tkl.f32].filled(KEPT),
    least: tkl.OutputBuffer[BN, tkl.f32].filled(KEPT),
    whole: tkl.OutputBuffer[1, tkl.f32].filled(KEPT),
    largest_of: tkl.OutputBuffer[BN, tkl.f32].filled(KEPT),
    running: tkl.OutputBuffer[BM, BN, tkl.f32].filled(KEPT),
    ordered: tkl.OutputBuffer[BM, BN, tkl.f32].filled(KEPT),
) -> None:
    mask = tkl.load(live, (0, 0), (BM, BN))
    tile = tkl.load(x, (0, 0), (BM, BN), mask=mask)
    tkl.store(along_rows, (0,), tkl.sum(tile, 1))
    tkl.store(least, (0,), tkl.min(tile, 0))
    tkl.store(whole, (0,), tkl.sum(tile)[None])
    folded = tkl.reduce(lambda a, b: tkl.maximum(a, b), tile, 0, -math.inf)
    tkl.store(largest_of, (0,), folded)
    tkl.store(running, (0, 0), tkl.cumsum(tile, 1))
    tkl.store(ordered, (0, 0), tkl.sort(tile, 1))


@pytest.mark.parametrize(
    ("shape", "of_mask"), [((8, 16), (8, 16)), ((5, 9), (8, 16)), ((8, 16), (6, 13))]
)
def test_loaded_masks_reduce_as_in_numpy_ma(
    shape: tuple[int, int], of_mask: tuple[int, int]
) -> None:
    x, live, _ = masked_numbers(3, 8, 16)
    x, live = x[: shape[0], : shape[1]].clone(), live[: of_mask[0], : of_mask[1]].clone()
    dead, values = np.ones((8, 16), dtype=bool), np.zeros((8, 16), dtype=np.float32)
    inside = tuple(slice(0, min(pair)) for pair in zip(shape, of_mask, strict=True))
    dead[inside], values[inside] = ~live.numpy()[inside], x.numpy()[inside]
    held = ma.array(values, mask=dead)
    ends = ma.sort(held, axis=1)
    assert_equal(
        both_ways(reductions, x, live),
        held.sum(1),
        held.min(0),
        np.array([held.sum()]),
        held.max(0),
        held.cumsum(1),
        ends,
    )


def test_a_fully_masked_tile_is_not_stored() -> None:
    x, live, _ = masked_numbers(3, 8, 16)
    for given in both_ways(reductions, x, torch.zeros_like(live)):
        assert all(torch.equal(result, torch.full_like(result, KEPT)) for result in given)


def test_empty_rows_reduce_to_the_neutral_element() -> None:
    nothing = torch.zeros(5, 0)
    (total, most, *_) = rows(nothing, torch.tensor([True, False, True, True, True]))
    assert total.tolist() == [0, KEPT, 0, 0, 0]
    assert most.tolist() == [-math.inf, KEPT, -math.inf, -math.inf, -math.inf]


@tk.gen.kernel(1, blocks={BM: 4, BN: 8, BK: 16})
def products(
    a: tkl.InputBuffer[M, K, tkl.f32],
    b: tkl.InputBuffer[K, N, tkl.f32],
    live_a: tkl.InputBuffer[M, K, tkl.bool],
    live_b: tkl.InputBuffer[K, N, tkl.bool],
    left: tkl.OutputBuffer[M, N, tkl.f32].filled(KEPT),
    right: tkl.OutputBuffer[M, N, tkl.f32].filled(KEPT),
    both: tkl.OutputBuffer[M, N, tkl.f32].filled(KEPT),
    added: tkl.OutputBuffer[M, N, tkl.f32].filled(KEPT),
) -> None:
    of_a = tkl.load(live_a, (0, 0), (BM, BK))
    of_b = tkl.load(live_b, (0, 0), (BK, BN))
    x, y = tkl.load(a, (0, 0), (BM, BK)), tkl.load(b, (0, 0), (BK, BN))
    masked_x = tkl.load(a, (0, 0), (BM, BK), mask=of_a)
    masked_y = tkl.load(b, (0, 0), (BK, BN), mask=of_b)
    tkl.store(left, (0, 0), tkl.dot(masked_x, y))
    tkl.store(right, (0, 0), tkl.dot(x, masked_y))
    tkl.store(both, (0, 0), tkl.dot(masked_x, masked_y))
    tkl.store(added, (0, 0), tkl.dot(masked_x, y, tkl.full((BM, BN), 100, tkl.f32)))


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("m", "k", "n"), [(4, 16, 8), (3, 13, 7), (4, 1, 1)])
def test_dot_skips_masked_lanes_as_in_numpy_ma(m: int, k: int, n: int) -> None:
    a, live_a, held_a = masked_numbers(5, m, k)
    b, live_b, held_b = masked_numbers(6, k, n)
    live_a[0, 0] = live_b[0, 0] = True
    held_a, held_b = (ma.array(v, mask=~w) for v, w in ((a, live_a), (b, live_b)))
    whole_a, whole_b = (ma.array(v, mask=np.zeros(v.shape, dtype=bool)) for v in (a, b))
    multiply: Any = ma.dot
    left = multiply(held_a, whole_b)
    wanted = left, multiply(whole_a, held_b), multiply(held_a, held_b), left + 100
    assert_equal(both_ways(products, a, b, live_a, live_b), *wanted)


@tk.gen.kernel(M // BM, blocks={BM: 4, BN: 4})
def attention(
    q: tkl.InputBuffer[M, K, tkl.f32],
    k: tkl.InputBuffer[N, K, tkl.f32],
    v: tkl.InputBuffer[N, K, tkl.f32],
    live: tkl.InputBuffer[N, tkl.bool],
    out: tkl.OutputBuffer[M, K, tkl.f32].filled(KEPT),
) -> None:
    i = tkl.program_id(0) * BM
    queries = tkl.load(q, (i, 0), (BM, K))
    start = [tkl.full((BM,), -math.inf, tkl.f32), tkl.zeros((BM,), tkl.f32)]

    @tkl.for_loop(0, N // BN, init_args=[*start, tkl.zeros((BM, K), tkl.f32)])
    def blocks(j: Any, largest: Any, total: Any, acc: Any) -> Any:
        is_live = tkl.load(live, (j * BN,), (BN,))
        keys = tkl.load(k, (j * BN, 0), (BN, K), mask=is_live[:, None])
        values = tkl.load(v, (j * BN, 0), (BN, K))
        scores = tkl.dot(queries, tkl.transpose(keys))
        new = tkl.maximum(largest, tkl.max(scores, 1))
        weights, shrink = tkl.exp(scores - new[:, None]), tkl.exp(largest - new)
        total = total * shrink + tkl.sum(weights, 1)
        return new, total, tkl.dot(weights, values, acc * shrink[:, None])

    _, total, acc = blocks
    tkl.store(out, (i, 0), acc / total[:, None], mask=total[:, None] > 0)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("size", [4, 11, 16])
def test_masked_keys_of_attention_have_zero_weight(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    q, k, v = (torch.randn(n, 8, generator=generator) for n in (6, size, size))
    live = torch.arange(size) % 3 == 1
    live[:4] = False  # a block of keys without one that is live
    scores = (q @ k.T).double().numpy()[:, live.numpy()]
    weights = np.exp(scores - scores.max(1, keepdims=True)) if live.any() else scores
    shares = weights / weights.sum(1, keepdims=True)
    wanted = shares @ v.double().numpy()[live.numpy()] if live.any() else np.full((6, 8), KEPT)
    for (result,) in both_ways(attention, q, k, v, live):
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)


@tk.gen.kernel(M)
def single(
    x: tkl.InputBuffer[M, tkl.i64],
    live: tkl.InputBuffer[M, tkl.bool],
    y: tkl.OutputBuffer[M, tkl.i64],
    turns: tkl.OutputBuffer[M, tkl.i64],
    filled: tkl.OutputBuffer[M, tkl.i64],
) -> None:
    i = tkl.program_id(0)
    count = tkl.load(x, (i,), mask=tkl.load(live, (i,)))
    chosen = tkl.cond(count > 0, lambda: tkl.full((), 1, tkl.i64), lambda: tkl.full((), 2, tkl.i64))
    tkl.store(y, (i,), chosen)
    body = tkl.for_loop(0, count, init_args=[tkl.full((), 0, tkl.i64)])(lambda k, n: n + 1)
    tkl.store(turns, (i,), body[0])
    tkl.store(filled, (i,), tkl.load(x, (i,), mask=tkl.load(live, (i,)), other=50))


def test_masked_conditions_are_false_and_masked_bounds_skip_the_loop() -> None:
    x, live = torch.tensor([3, 3, 0, 5]), torch.tensor([True, False, True, True])
    for given in both_ways(single, x, live):
        assert [result.tolist() for result in given] == [[1, 2, 2, 1], [3, 0, 0, 5], [3, 50, 0, 5]]
