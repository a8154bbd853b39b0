"""Kernels of TK on an NVIDIA GPU beside PyTorch: what `benchmarks/kernels.py --device cuda` runs.

A row has the median time of both, measured with events, the rate that the kernel reaches, and
PyTorch's time over the kernel's. Rates of kernels that only move data are to be compared with the
copy in the first row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import tables

M, N, K, BM, BN, BK, B, H, S, D = tkl.symbols("M N K BM BN BK B H S D")
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


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 1, BN: 4096})
def bias_gelu_residual(
    x: tkl.InputBuffer[M, N, T],
    bias: tkl.InputBuffer[N, T],
    residual: tkl.InputBuffer[M, N, T],
    y: tkl.OutputBuffer[M, N, T],
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    biased = tkl.load(x, (i, j), (BM, BN)).to(tkl.f32) + tkl.load(bias, (j,), (BN,))
    gelu = biased * (0.5 + 0.5 * tkl.erf(biased * math.sqrt(0.5)))
    tkl.store(y, (i, j), gelu + tkl.load(residual, (i, j), (BM, BN)))


@tk.gen.kernel(M)
def cross_entropy(
    logits: tkl.InputBuffer[M, N, T],
    target: tkl.InputBuffer[M, tkl.i64],
    loss: tkl.OutputBuffer[M, tkl.f32],
) -> None:
    i = tkl.program_id(0)
    row = tkl.load(logits, (i, 0), (None, N)).to(tkl.f32)
    largest = tkl.max(row)
    total = tkl.log(tkl.sum(tkl.exp(row - largest))) + largest
    chosen = tkl.load(logits, (i, tkl.load(target, (i,))), check=False)
    tkl.store(loss, (i,), total - chosen)


In, Out = (kind[B, H, S, D, T] for kind in (tkl.InputBuffer, tkl.OutputBuffer))


def attention_kernel(is_causal: bool) -> tk.Kernel:
    """Flash attention, with or without later keys."""

    @tk.gen.kernel(B, H, S // BM)
    def attention(q: In, k: In, v: In, out: Out, scale: tkl.f32) -> None:  # type: ignore[valid-type]
        b, h, i = (tkl.program_id(axis) for axis in range(3))
        rows = tkl.load(q, (b, h, i * BM, 0), (None, None, BM, D))
        largest, total = tkl.full((BM,), -math.inf, tkl.f32), tkl.zeros((BM,), tkl.f32)
        init = [largest, total, tkl.zeros((BM, D), tkl.f32)]
        end = tkl.minimum((i + 1) * BM, S) if is_causal else S

        @tkl.for_loop(0, end // BN, init_args=init)
        def blocks(j: Any, largest: Any, total: Any, acc: Any) -> Any:
            keys = tkl.load(k, (b, h, j * BN, 0), (None, None, BN, D))
            values = tkl.load(v, (b, h, j * BN, 0), (None, None, BN, D))
            scores = tkl.dot(rows, tkl.transpose(keys)) * (scale * math.log2(math.e))
            if is_causal:
                query, key = i * BM + tkl.arange(BM), j * BN + tkl.arange(BN)
                scores = tkl.where(query[:, None] >= key[None, :], scores, -math.inf)
            new = tkl.maximum(largest, tkl.max(scores, axis=1))
            weights, shrink = tkl.exp2(scores - new[:, None]), tkl.exp2(largest - new)
            total = total * shrink + tkl.sum(weights, axis=1)
            return new, total, tkl.dot(weights.to(v.dtype), values, acc * shrink[:, None])

        _, total, acc = blocks
        tkl.store(out, (b, h, i * BM, 0), acc / total[:, None])

    return attention


ATTENTION = {is_causal: attention_kernel(is_causal) for is_causal in (False, True)}


@tk.gen.kernel(N // BN, blocks={BN: 64})
def add(x: tkl.InputBuffer[N, T], y: tkl.InputBuffer[N, T], z: tkl.OutputBuffer[N, T]) -> None:
    place = (tkl.program_id(0) * BN,)
    tkl.store(z, place, tkl.load(x, place, (BN,)) + tkl.load(y, place, (BN,)))


@dataclass(frozen=True)
class Case:
    """A kernel, what PyTorch has for it, the arguments, and the work of a call."""

    name: str
    kernel: Callable[..., Tensor]
    eager: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    work: float  # floating-point operations, or bytes
    unit: str  # "TFLOP/s" or "TB/s"
    tolerance: float = 2e-2


def _product(size: int, dtype: torch.dtype) -> Case:
    name = f"gemm {str(dtype).removeprefix('torch.')} {size}^3"
    return Case(name, gemm, torch.mm, ((size, size),) * 2, dtype, 2 * size**3, "TFLOP/s", 0.5)


def _attention(size: int, is_causal: bool) -> Case:
    shape, kernel = (2, 32, size, 128), ATTENTION[is_causal]
    work = 4 * 2 * 32 * size**2 * 128 / (1 + is_causal)

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = kernel(q, k, v, 128**-0.5)
        return result

    name = f"attention {'causal ' * is_causal}S={size} D=128"
    return Case(name, ours, eager, (shape,) * 3, torch.float16, work, "TFLOP/s")


def _moves(
    name: str,
    kernel: Callable[..., Tensor],
    eager: Callable[..., Tensor],
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.bfloat16,
) -> Case:
    """A case that is bound by memory: it reads its arguments and writes one like the first."""
    read = sum(math.prod(shape) for shape in shapes)
    work = (read + math.prod(shapes[0])) * dtype.itemsize
    return Case(name, kernel, eager, shapes, dtype, work, "TB/s")


ROWS, ROW = (32768, 4096), (4096,)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, ROW, w, b)


CASES = (
    _moves("copy", lambda x: x.clone(), lambda x: x.clone(), ROWS),
    _product(4096, torch.float16),
    _product(8192, torch.float16),
    _product(4096, torch.bfloat16),
    _product(8192, torch.bfloat16),
    _moves("softmax", softmax, lambda x: F.softmax(x, -1), ROWS),
    _moves("softmax f32", softmax, lambda x: F.softmax(x, -1), ROWS, dtype=torch.float32),
    _moves("layernorm", layernorm, _layer_norm, ROWS, ROW, ROW),
    _moves("rms norm", rms_norm, lambda x, w: F.rms_norm(x, ROW, w, 1e-6), ROWS, ROW),
    _moves(
        "bias + gelu + residual",
        bias_gelu_residual,
        lambda x, b, r: F.gelu(x + b) + r,
        ROWS,
        ROW,
        ROWS,
    ),
    _attention(4096, False),
    _attention(4096, True),
)


def rows(only: Sequence[str]) -> list[list[str]]:
    """Measured rows of the cases whose names begin with one of these."""
    found = [measure(case) for case in CASES if case.name.startswith(tuple(only) or "")]
    return [["kernel", "turbine ms", "PyTorch ms", "rate", "", "ratio"], *found]


def measure(case: Case) -> list[str]:
    """Compare the results of a case, then time it."""
    from triton.testing import do_bench

    torch.manual_seed(0)
    args = [torch.randn(shape, dtype=case.dtype, device="cuda") for shape in case.shapes]
    expected = case.eager(*args)
    torch.testing.assert_close(
        case.kernel(*args), expected, atol=case.tolerance, rtol=case.tolerance
    )
    own, eager = (
        do_bench(lambda f=function: f(*args), warmup=50, rep=200, return_mode="median")
        for function in (case.kernel, case.eager)
    )
    rate = case.work / own / 1e9
    return [case.name, f"{own:.3f}", f"{eager:.3f}", f"{rate:.3g}", case.unit, f"{eager / own:.2f}"]


def overhead() -> str:
    """The time that a call takes the CPU, beside that of a PyTorch op."""
    x, y = torch.randn(2, 64, device="cuda").unbind(0)
    torch.testing.assert_close(add(x, y), x + y)
    calls = {"turbine": lambda: add(x, y), "PyTorch": lambda: torch.add(x, y)}
    best = {name: min(_turn(call) for _ in range(20)) for name, call in calls.items()}
    return (
        f"a call on 64 elements: {best['turbine']:.1f} us, torch.add {best['PyTorch']:.1f} us; "
        "goal: 10 us more"
    )


def _turn(call: Callable[[], object], count: int = 200) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        call()
    taken = time.perf_counter() - started
    torch.cuda.synchronize()
    return 1e6 * taken / count


def report(only: Sequence[str]) -> str:
    """The table, and the overhead of a call."""
    return f"{tables.table(rows(only), right=(1, 2, 3, 5))}\n{overhead()}"
