"""Kernels of TK on an NVIDIA GPU beside PyTorch, for `benchmarks/kernel_times.py --device cuda`.

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

import gpu_results
import torch
import torch.nn.functional as F
from timed_kernels import add, gemm, layernorm, rms_norm, softmax
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import tables

M, N, K, BM, BN, BK, B, H, S, D, G, P, C = tkl.symbols("M N K BM BN BK B H S D G P C")
T = tkl.types.T


@tk.gen.kernel(M // BM, N // BN)
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
    to_exp2 = math.log2(math.e)

    @tkl.for_loop(
        0, N // BN, init_args=[tkl.full((), -math.inf, tkl.f32), tkl.zeros((BN,), tkl.f32)]
    )
    def blocks(j: Any, largest: Any, total: Any) -> Any:
        row = tkl.load(logits, (i, j * BN), (None, BN), other=-math.inf).to(tkl.f32) * to_exp2
        new = tkl.maximum(largest, tkl.max(row))
        return new, total * tkl.exp2(largest - new) + tkl.exp2(row - new)

    total = (tkl.log2(tkl.sum(blocks[1])) + blocks[0]) / to_exp2
    tkl.store(loss, (i,), total - tkl.load(logits, (i, tkl.load(target, (i,))), check=False))


@tk.gen.kernel(M)
def cross_entropy_of_rows(
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


@tk.gen.kernel(M // BM, N // BN)
def gemm_transposed(
    a: tkl.InputBuffer[M, K, T], b: tkl.InputBuffer[N, K, T], c: tkl.OutputBuffer[M, N, tkl.bf16]
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def body(k: Any, acc: Any) -> Any:
        x = tkl.load(a, (i, k * BK), (BM, BK))
        y = tkl.load(b, (j, k * BK), (BN, BK))
        return tkl.dot(x, tkl.transpose(y), acc)

    tkl.store(c, (i, j), body[0])


In, Out = (kind[B, H, S, D, T] for kind in (tkl.InputBuffer, tkl.OutputBuffer))


def attention_kernel(is_causal: bool) -> tk.Kernel:
    """Flash attention; if it is causal, only blocks on the diagonal compare positions."""

    @tk.gen.kernel(B, H, S // BM)
    def attention(q: In, k: In, v: In, out: Out, scale: tkl.f32) -> None:  # type: ignore[valid-type]
        b, h = tkl.program_id(0), tkl.program_id(1)
        # The longest rows first, so that no program is left alone at the end.
        i = tkl.num_programs(2) - 1 - tkl.program_id(2) if is_causal else tkl.program_id(2)
        rows = tkl.load(q, (b, h, i * BM, 0), (None, None, BM, D))
        to_exp2 = scale * math.log2(math.e)

        def step(j: Any, state: Any, is_masked: bool) -> Any:
            largest, total, acc = state
            keys = tkl.load(k, (b, h, j * BN, 0), (None, None, BN, D))
            values = tkl.load(v, (b, h, j * BN, 0), (None, None, BN, D))
            scores = tkl.dot(rows, tkl.transpose(keys))
            if is_masked:
                row, column = i * BM + tkl.arange(BM), j * BN + tkl.arange(BN)
                scores = tkl.where(row[:, None] >= column[None, :], scores, -math.inf)
            new = tkl.maximum(largest, tkl.max(scores, axis=1) * to_exp2)
            weights, shrink = tkl.exp2(scores * to_exp2 - new[:, None]), tkl.exp2(largest - new)
            total = total * shrink + tkl.sum(weights, axis=1)
            return new, total, tkl.dot(weights.to(v.dtype), values, acc * shrink[:, None])

        largest, total = tkl.full((BM,), -math.inf, tkl.f32), tkl.zeros((BM,), tkl.f32)
        state: Any = [largest, total, tkl.zeros((BM, D), tkl.f32)]

        # Whole blocks of keys before the rows: `//` of a stop rounds up.
        before = (i * BM - BN + 1) // BN

        @tkl.for_loop(0, before if is_causal else S // BN, init_args=state)
        def blocks(j: Any, *state: Any) -> Any:
            return step(j, state, False)

        state = [*blocks]
        if is_causal:

            @tkl.for_loop(i * BM // BN, tkl.cdiv((i + 1) * BM, BN), init_args=state)
            def diagonal(j: Any, *state: Any) -> Any:
                return step(j, state, True)

            state = [*diagonal]
        _, total, acc = state
        tkl.store(out, (b, h, i * BM, 0), acc / total[:, None])

    return attention


@tk.gen.kernel(B, H)
def paged_attention(
    q: tkl.InputBuffer[B, H, G, D, T],
    k: tkl.InputBuffer[C, P, H, D, T],
    v: tkl.InputBuffer[C, P, H, D, T],
    pages: tkl.InputBuffer[B, S, tkl.i32],
    lengths: tkl.InputBuffer[B, tkl.i32],
    out: tkl.OutputBuffer[B, H, G, D, T],
    scale: tkl.f32,
) -> None:
    """One new token of each sequence: G heads of queries share one of keys, in pages of a cache."""
    b, h = tkl.program_id(0), tkl.program_id(1)
    count = tkl.load(lengths, (b,))
    rows = tkl.load(q, (b, h, 0, 0), (None, None, G, D))
    to_exp2 = scale * math.log2(math.e)
    largest, total = tkl.full((G,), -math.inf, tkl.f32), tkl.zeros((G,), tkl.f32)

    @tkl.for_loop(0, tkl.cdiv(count, P), init_args=[largest, total, tkl.zeros((G, D), tkl.f32)])
    def blocks(j: Any, largest: Any, total: Any, acc: Any) -> Any:
        page = tkl.load(pages, (b, j), check=False)
        keys = tkl.load(k, (page, 0, h, 0), (None, P, None, D), check=False)
        values = tkl.load(v, (page, 0, h, 0), (None, P, None, D), check=False)
        scores = tkl.dot(rows, tkl.transpose(keys)) * to_exp2
        is_used = j * P + tkl.arange(P) < count
        scores = tkl.where(is_used[None, :], scores, -math.inf)
        new = tkl.maximum(largest, tkl.max(scores, axis=1))
        weights, shrink = tkl.exp2(scores - new[:, None]), tkl.exp2(largest - new)
        total = total * shrink + tkl.sum(weights, axis=1)
        return new, total, tkl.dot(weights.to(v.dtype), values, acc * shrink[:, None])

    _, total, acc = blocks
    tkl.store(out, (b, h, 0, 0), acc / total[:, None])


ATTENTION = {is_causal: attention_kernel(is_causal) for is_causal in (False, True)}


@dataclass(frozen=True)
class Case:
    """A kernel, what PyTorch has for it, the arguments, and the work of a call."""

    name: str
    kernel: Callable[..., Tensor]
    eager: Callable[..., Tensor]
    args: Callable[[], Sequence[Any]]
    work: float  # floating-point operations, or bytes
    unit: str  # "TFLOP/s" or "TB/s"
    tolerance: float = 2e-2
    scale: float | None = None  # the last argument of kernels for attention

    def own_args(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of the kernel."""
        return [*args] if self.scale is None else [*args, self.scale]


def _random(*shapes: tuple[int, ...], dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes]


def _product(size: int, dtype: torch.dtype) -> Case:
    name = f"gemm {str(dtype).removeprefix('torch.')} {size}^3"
    args = _random(*((size, size),) * 2, dtype=dtype)
    return Case(name, gemm, torch.mm, args, 2 * size**3, "TFLOP/s", 0.5)


def _float8_product(size: int) -> Case:
    def args() -> list[Tensor]:
        pair = (torch.randn(size, size, device="cuda") for _ in range(2))
        return [x.to(torch.float8_e4m3fn) for x in pair]

    def eager(a: Tensor, b: Tensor) -> Tensor:
        one = torch.ones((), device="cuda")
        return torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16)

    name = f"gemm float8_e4m3fn {size}^3"
    return Case(name, gemm_transposed, eager, args, 2 * size**3, "TFLOP/s", 1.0)


def _attention(size: int, is_causal: bool) -> Case:
    shape, kernel = (2, 32, size, 128), ATTENTION[is_causal]
    work = 4 * 2 * 32 * size**2 * 128 / (1 + is_causal)

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    name = f"attention {'causal ' * is_causal}S={size} D=128"
    args = _random(*(shape,) * 3, dtype=torch.float16)
    return Case(name, kernel, eager, args, work, "TFLOP/s", scale=128**-0.5)


def paged_cache(
    count: int, length: int, heads: int = 8, group: int = 4, size: int = 128, page: int = 64
) -> list[Tensor]:
    """Queries of a new token, and keys and values of sequences in the pages of a cache."""
    pages = -(-length // page)
    cache = torch.randn(2, count * pages, page, heads, size).half()
    places = torch.randperm(count * pages).view(count, pages).int()
    queries = torch.randn(count, heads, group, size).half()
    return [queries, *cache.unbind(0), places, torch.full((count,), length, dtype=torch.int32)]


def attend_contiguously(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, lengths: Tensor) -> Tensor:
    """The same by PyTorch: sequences of one length are gathered, and attended to."""
    flat = pages.long().flatten()
    gathered = [x[flat].unflatten(0, pages.shape).flatten(1, 2).transpose(1, 2) for x in (k, v)]
    keys, values = (x[:, :, : int(lengths[0])] for x in gathered)
    return F.scaled_dot_product_attention(q, keys, values)


def _paged_attention() -> Case:
    """A step of 64 sequences of 4096 tokens, 32 heads of queries and 8 of keys."""

    def args() -> list[Tensor]:
        with torch.device("cuda"):
            return paged_cache(64, 4096)

    work = 2 * 64 * 4096 * 8 * 128 * 2
    name = "paged decode"
    return Case(name, paged_attention, attend_contiguously, args, work, "TB/s", scale=128**-0.5)


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
    return Case(name, kernel, eager, _random(*shapes, dtype=dtype), work, "TB/s")


ROWS, ROW = (32768, 4096), (4096,)


def _cross_entropy(name: str, kernel: tk.Kernel) -> Case:
    """The loss of 8192 tokens of a vocabulary of 50304."""

    def args() -> list[Tensor]:
        logits = torch.randn(8192, 50304, dtype=torch.bfloat16, device="cuda")
        return [logits, torch.randint(0, 50304, (8192,), device="cuda")]

    def eager(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), target, reduction="none")

    return Case(name, kernel, eager, args, 8192 * 50304 * 2, "TB/s")


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, ROW, w, b)


CASES = (
    _moves("copy", lambda x: x.clone(), lambda x: x.clone(), ROWS),
    _product(4096, torch.float16),
    _product(8192, torch.float16),
    _product(4096, torch.bfloat16),
    _product(8192, torch.bfloat16),
    _float8_product(8192),
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
    _cross_entropy("cross entropy", cross_entropy),
    _cross_entropy("cross entropy of whole rows", cross_entropy_of_rows),
    _attention(4096, False),
    _attention(4096, True),
    _paged_attention(),
)


def rows(only: Sequence[str]) -> list[list[str]]:
    """Measured rows of the cases whose names begin with one of these."""
    found = [measure(case) for case in CASES if case.name.startswith(tuple(only) or "")]
    return [["kernel", "turbine ms", "PyTorch ms", "rate", "", "ratio"], *found]


def measure(case: Case) -> list[str]:
    """Compare the results of a case, then time it."""
    args = checked_args(case)
    own, eager = seconds_of(case.kernel, case.own_args(args)), seconds_of(case.eager, args)
    figures = {"turbine": own, "eager": eager, f"turbine {case.unit}": case.work / own / 1e12}
    gpu_results.keep("kernels, seconds", {case.name: figures})
    return [
        case.name,
        f"{1e3 * own:.3f}",
        f"{1e3 * eager:.3f}",
        f"{case.work / own / 1e12:.3g}",
        case.unit,
        f"{eager / own:.2f}",
    ]


def checked_args(case: Case) -> Sequence[Any]:
    """Arguments for which the kernel's result is PyTorch's."""
    torch.manual_seed(0)
    args = case.args()
    result, expected = case.kernel(*case.own_args(args)), case.eager(*args)
    torch.testing.assert_close(result, expected, atol=case.tolerance, rtol=case.tolerance)
    return args


def seconds_of(function: Callable[..., object], args: Sequence[Any]) -> float:
    """The median seconds of a call, with nothing in the caches."""
    from triton.testing import do_bench

    run = do_bench(lambda: function(*args), warmup=50, rep=200, return_mode="median")
    return 1e-3 * float(run)


def tuned_rows(only: Sequence[str], seconds: float) -> list[list[str]]:
    """Rows of the cases that are kernels, tuned for so many seconds each."""
    head = ["kernel", "default us", "tuned us", "speed", "rate", "", "of PyTorch", "configuration"]
    cases = [case for case in CASES if case.name.startswith(tuple(only) or "")]
    return [head, *(tune(case, seconds) for case in cases if isinstance(case.kernel, tk.Kernel))]


def tune(case: Case, seconds: float) -> list[str]:
    """Tune a case; the default and the winner are timed again, in turns with PyTorch's op."""
    assert isinstance(case.kernel, tk.Kernel)
    args = checked_args(case)
    own_args = case.own_args(args)
    report = case.kernel.tune(*own_args, seconds=seconds)
    print(report, flush=True)
    default = case.kernel.using(**report.trials[0].configuration)
    calls = ((default, own_args), (case.kernel, own_args), (case.eager, args))
    turns = [[seconds_of(*call) for call in calls] for _ in range(3)]
    before, after, eager = (sorted(times)[1] for times in zip(*turns, strict=True))
    return [
        case.name,
        f"{1e6 * before:.1f}",
        f"{1e6 * after:.1f}",
        f"{before / after:.2f}",
        f"{case.work / after / 1e12:.3g}",
        case.unit,
        f"{eager / after:.2f}",
        " ".join(f"{name}={value}" for name, value in report.best.items()),
    ]


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


def report(only: Sequence[str], tune_seconds: float = 0) -> str:
    """The table, and the overhead of a call; with seconds to tune, default beside tuned."""
    if tune_seconds:
        return tables.table(tuned_rows(only, tune_seconds), right=(1, 2, 3, 4, 6))
    return f"{tables.table(rows(only), right=(1, 2, 3, 5))}\n{overhead()}"
