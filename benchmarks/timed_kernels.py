"""Kernels of TK that benchmarks/kernel_times.py times on CPUs and on GPUs."""

from __future__ import annotations

from typing import Any

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, K, BM, BN, BK = tkl.symbols("M N K BM BN BK")
T = tkl.types.T


@tk.gen.kernel(M // BM, N // BN)
def gemm(
    a: tkl.InputBuffer[M, K, T], b: tkl.InputBuffer[K, N, T], c: tkl.OutputBuffer[M, N, T]
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def body(k: Any, acc: Any) -> Any:
        x = tkl.load(a, (i, k * BK), (BM, BK))
        y = tkl.load(b, (k * BK, j), (BK, BN))
        return tkl.dot(x, y, acc)

    tkl.store(c, (i, j), body[0])


@tk.gen.kernel(M)
def softmax(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N)).to(tkl.f32)
    powers = tkl.exp(row - tkl.max(row))
    tkl.store(y, (i, 0), powers / tkl.sum(powers))


@tk.gen.kernel(M)
def layernorm(
    x: tkl.InputBuffer[M, N, T],
    weight: tkl.InputBuffer[N, T],
    bias: tkl.InputBuffer[N, T],
    y: tkl.OutputBuffer[M, N, T],
) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N)).to(tkl.f32)
    centered = row - tkl.sum(row) / N
    scale = tkl.rsqrt(tkl.sum(centered * centered) / N + 1e-5)
    w, b = tkl.load(weight, (0,), (N,)), tkl.load(bias, (0,), (N,))
    tkl.store(y, (i, 0), centered * scale * w + b)


@tk.gen.kernel(M)
def rms_norm(
    x: tkl.InputBuffer[M, N, T], weight: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[M, N, T]
) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N)).to(tkl.f32)
    scale = tkl.rsqrt(tkl.sum(row * row) / N + 1e-6)
    tkl.store(y, (i, 0), row * scale * tkl.load(weight, (0,), (N,)))


@tk.gen.kernel(N // BN, blocks={BN: 64})
def add(x: tkl.InputBuffer[N, T], y: tkl.InputBuffer[N, T], z: tkl.OutputBuffer[N, T]) -> None:
    place = (tkl.program_id(0) * BN,)
    tkl.store(z, place, tkl.load(x, place, (BN,)) + tkl.load(y, place, (BN,)))
