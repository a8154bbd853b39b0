"""Time kernels of TK beside PyTorch on the same machine and threads.

Prints milliseconds by medians, and PyTorch's time over the kernel's with the goal for it; then what
checks of loaded indices cost. Calls take turns, so that a busy machine is busy for both:

    python benchmarks/kernel_times.py --seconds 3
    python benchmarks/kernel_times.py --only gemm,softmax
    python benchmarks/kernel_times.py --only checks
    python benchmarks/kernel_times.py --device cuda
    python benchmarks/kernel_times.py --device cuda --tune 60

`--tune` tunes each kernel for so many seconds, and prints times of the default and of the winner.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cuda_kernels
import torch
import torch.nn.functional as F
from timed_kernels import add, gemm, layernorm, rms_norm, softmax
from timing import Call, round_robin, warn_if_busy
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import tables
from turbine.kernel.call.kernel import Kernel

M, N, K, D, H, S = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.D, tkl.sym.H, tkl.sym.S
BM, BN, BK = tkl.sym.BM, tkl.sym.BN, tkl.sym.BK
f32 = tkl.f32


def gelu_of(x: Any) -> Any:
    """GELU of a tile."""
    half = 0.5 * x
    return tkl.fma(half, tkl.erf(x * math.sqrt(0.5)), half)


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 4, BN: 4096})
def gelu(x: tkl.InputBuffer[M, N, f32], y: tkl.OutputBuffer[M, N, f32]) -> None:
    place = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    tkl.store(y, place, gelu_of(tkl.load(x, place, (BM, BN))))


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 4, BN: 4096})
def bias_gelu_residual(
    x: tkl.InputBuffer[M, N, f32],
    bias: tkl.InputBuffer[N, f32],
    residual: tkl.InputBuffer[M, N, f32],
    y: tkl.OutputBuffer[M, N, f32],
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    biased = tkl.load(x, (i, j), (BM, BN)) + tkl.load(bias, (j,), (BN,))
    tkl.store(y, (i, j), gelu_of(biased) + tkl.load(residual, (i, j), (BM, BN)))


@tk.gen.kernel(H, S // BM)
def attention(
    q: tkl.InputBuffer[H, S, D, f32],
    k: tkl.InputBuffer[H, S, D, f32],
    v: tkl.InputBuffer[H, S, D, f32],
    o: tkl.OutputBuffer[H, S, D, f32],
    scale: f32,
) -> None:
    h, i = tkl.program_id(0), tkl.program_id(1)
    queries = tkl.load(q, (h, i * BM, 0), (None, BM, D)) * (scale * 1.4426950408889634)
    most = tkl.constant((BM, 1), f32, float("-inf"))
    total, acc = tkl.zeros((BM, 1), f32), tkl.zeros((BM, D), f32)

    @tkl.for_loop(0, S // BN, init_args=[most, total, acc])
    def body(j: Any, most: Any, total: Any, acc: Any) -> Any:
        keys = tkl.load(k, (h, j * BN, 0), (None, BN, D))
        values = tkl.load(v, (h, j * BN, 0), (None, BN, D))
        scores = tkl.dot(queries, tkl.transpose(keys, (1, 0)))
        larger = tkl.maximum(most, tkl.max(scores, axis=1, keepdims=True))
        weights = tkl.exp2(scores - larger)
        shrink = tkl.exp2(most - larger)
        total = total * shrink + tkl.sum(weights, axis=1, keepdims=True)
        return larger, total, tkl.dot(weights, values, acc * shrink)

    tkl.store(o, (h, i * BM, 0), body[2] / body[1])


def take(check: bool) -> Kernel:
    """Elements by loaded indices."""

    @tk.gen.kernel(M // BM, blocks={BM: 1024})
    def taken(
        x: tkl.InputBuffer[N, f32], ids: tkl.InputBuffer[M, tkl.i64], y: tkl.OutputBuffer[M, f32]
    ) -> None:
        start = tkl.program_id(0) * BM
        tkl.store(y, (start,), tkl.load(x, (tkl.load(ids, (start,), (BM,)),), check=check))

    return taken


def embed(check: bool) -> Kernel:
    """Rows by loaded indices."""

    @tk.gen.kernel(M)
    def embedded(
        x: tkl.InputBuffer[N, K, f32],
        ids: tkl.InputBuffer[M, tkl.i64],
        y: tkl.OutputBuffer[M, K, f32],
    ) -> None:
        i = tkl.program_id(0)
        row = tkl.load(x, (tkl.load(ids, (i,)), 0), (1, K), check=check)
        tkl.store(y, (i, 0), row)

    return embedded


def histogram(check: bool) -> Kernel:
    """Counts by loaded indices."""

    @tk.gen.kernel(M // BM, blocks={BM: 1024})
    def counted(
        x: tkl.InputBuffer[N, f32],
        ids: tkl.InputBuffer[M, tkl.i64],
        y: tkl.OutputBuffer[N, tkl.i64].filled(0),
    ) -> None:
        values = tkl.load(ids, (tkl.program_id(0) * BM,), (BM,))
        tkl.atomic_add(y, (values,), 1, check=check)

    return counted


@dataclass(frozen=True)
class Case:
    """A kernel and what PyTorch has for it; `goal` is for PyTorch's time over the kernel's."""

    name: str
    kernel: Callable[..., Tensor]
    eager: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    goal: float


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, 1 / math.sqrt(q.shape[-1]))


SQUARE = (4096, 4096)
CASES = (
    Case("gemm 1024^3", gemm, torch.mm, ((1024, 1024), (1024, 1024)), 0.9),
    Case("softmax", softmax, lambda x: F.softmax(x, -1), (SQUARE,), 1.0),
    Case(
        "layernorm",
        layernorm,
        lambda x, w, b: F.layer_norm(x, (4096,), w, b),
        (SQUARE, (4096,), (4096,)),
        1.0,
    ),
    Case(
        "rms norm",
        rms_norm,
        lambda x, w: F.rms_norm(x, (4096,), w, 1e-6),
        (SQUARE, (4096,)),
        1.0,
    ),
    Case("gelu", gelu, F.gelu, (SQUARE,), 1.0),
    Case(
        "bias + gelu + residual",
        bias_gelu_residual,
        lambda x, b, r: F.gelu(x + b) + r,
        (SQUARE, (4096,), SQUARE),
        1.5,
    ),
    Case(
        "attention 8x1024x64",
        _attention,
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0],
        ((8, 1024, 64),) * 3,
        1.0,
    ),
)
OVERHEAD_GOAL_US = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="time spent on each kernel")
    parser.add_argument("--only", default="", help="kernels whose names begin with one of these")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tune", type=float, default=0, help="seconds to tune each kernel")
    options = parser.parse_args(arguments)
    wanted = tuple(name for name in options.only.split(",") if name)
    if options.device == "cuda":
        print(cuda_kernels.report(wanted, options.tune))
        return 0
    warn_if_busy()
    cases = [case for case in CASES if case.name.startswith(wanted or "")]
    if options.tune:
        print(
            tables.table([_TUNED, *(_tuned_row(case, options) for case in cases)], right=(1, 2, 3))
        )
        return 0
    rows = [_row(case, options.seconds) for case in cases]
    head = ["kernel", "turbine ms", "PyTorch ms", "ratio", "goal"]
    print(tables.table([head, *rows], right=(1, 2, 3, 4)))
    if not wanted or "add" in wanted:
        print(_overhead(options.seconds))
    if not wanted or "checks" in wanted:
        print(_checks(options.seconds))
    return 0


def _row(case: Case, seconds: float) -> list[str]:
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in case.shapes]
    torch.testing.assert_close(case.kernel(*args), case.eager(*args), rtol=1e-3, atol=1e-3)
    calls: dict[str, Call] = {
        "turbine": lambda: case.kernel(*args),
        "PyTorch": lambda: case.eager(*args),
    }
    timings = round_robin(calls, seconds=seconds)
    own, eager = timings["turbine"].median, timings["PyTorch"].median
    texts = [f"{1e3 * own:.2f}", f"{1e3 * eager:.2f}", f"{eager / own:.2f}", f"{case.goal:.1f}"]
    return [case.name, *texts]


_TUNED = ["kernel", "default ms", "tuned ms", "speed", "configuration"]


def _tuned_row(case: Case, options: argparse.Namespace) -> list[str]:
    """Tune a kernel, and time its default in turns with the winner."""
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in case.shapes]
    if case.kernel is _attention:
        kernel, args = attention, [*args, 1 / math.sqrt(args[0].shape[-1])]
    else:
        assert isinstance(case.kernel, Kernel)
        kernel = case.kernel
    report = kernel.tune(*args, seconds=options.tune)
    print(report, flush=True)
    default = kernel.using(**report.trials[0].configuration)
    calls: dict[str, Call] = {"default": lambda: default(*args), "tuned": lambda: kernel(*args)}
    timings = round_robin(calls, seconds=options.seconds)
    before, after = timings["default"].median, timings["tuned"].median
    best = " ".join(f"{name}={value}" for name, value in report.best.items())
    return [case.name, f"{1e3 * before:.2f}", f"{1e3 * after:.2f}", f"{before / after:.2f}", best]


def _overhead(seconds: float) -> str:
    x, y = torch.randn(2, 64).unbind(0)
    torch.testing.assert_close(add(x, y), x + y)
    calls: dict[str, Call] = {"turbine": lambda: add(x, y), "PyTorch": lambda: torch.add(x, y)}
    timings = round_robin(calls, seconds=seconds, block=50)
    over = 1e6 * (timings["turbine"].best - timings["PyTorch"].best)
    return f"a cached call on 64 elements: {over:.1f} us over torch.add; goal {OVERHEAD_GOAL_US}"


# A kernel with and without checks, the tensor that is indexed, and how many indices there are.
CHECKED: tuple[tuple[str, Callable[[bool], Kernel], tuple[int, ...], int], ...] = (
    ("take 1M of 1M", take, (1 << 20,), 1 << 20),
    ("take 1M of 1K", take, (1 << 10,), 1 << 20),
    ("take 64 of 1K", take, (1 << 10,), 64),
    ("embed 4K rows of 256", embed, (1 << 15, 256), 1 << 12),
    ("embed 16 rows of 256", embed, (1 << 15, 256), 16),
    ("histogram of 1M", histogram, (1 << 10,), 1 << 20),
)


def _checks(seconds: float) -> str:
    rows = [["indices that are loaded", "checked us", "unchecked us", "cost"]]
    for name, make, shape, count in CHECKED:
        x, ids = torch.randn(shape), torch.randint(0, shape[0], (count,))
        checked, unchecked = make(True), make(False)
        assert torch.equal(checked(x, ids), unchecked(x, ids))
        calls: dict[str, Call] = {
            "checked": lambda call=checked, x=x, ids=ids: call(x, ids),
            "unchecked": lambda call=unchecked, x=x, ids=ids: call(x, ids),
        }
        timings = round_robin(calls, seconds=seconds, block=5)
        own, bare = timings["checked"].median, timings["unchecked"].median
        rows.append(
            [name, f"{1e6 * own:.1f}", f"{1e6 * bare:.1f}", f"{100 * (own / bare - 1):.0f}%"]
        )
    return tables.table(rows, right=(1, 2, 3))


if __name__ == "__main__":
    raise SystemExit(main())
