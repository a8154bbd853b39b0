"""Matmuls of bf16 tiles use AMX where the target has it; x86_64 code is compiled everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import target as targets
from turbine.compiler import host, invoke, session
from turbine.target import Target

M, N, K, BM, BN = tkl.symbols("M N K BM BN")
T = tkl.types.T
AMX = Target(
    "cpu",
    "sapphirerapids",
    "+avx2,+fma,+avx512f,+avx512bw,+avx512vl,+avx512dq,+amx-tile,+amx-bf16",
    "x86_64",
)
_TRIPLE = "--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu"


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 40, BN: 48})
def gemm(
    a: tkl.InputBuffer[M, K, T],
    b: tkl.InputBuffer[K, N, T],
    c: tkl.OutputBuffer[M, N, tkl.f32],
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN
    x, y = tkl.load(a, (i, 0), (BM, K)), tkl.load(b, (0, j), (K, BN))
    tkl.store(c, (i, j), tkl.dot(x, y))


@tk.gen.kernel(M // BM, blocks={BM: 40})
def gemm_of_computed(
    a: tkl.InputBuffer[M, K, T],
    b: tkl.InputBuffer[N, K, T],
    c: tkl.OutputBuffer[M, N, tkl.f32],
) -> None:
    i = tkl.program_id(0) * BM
    x, y = tkl.load(a, (i, 0), (BM, K)), tkl.load(b, (0, 0), (N, K))
    tkl.store(c, (i, 0), tkl.dot(x * 2, tkl.transpose(y, (1, 0)), tkl.full((BM, N), 1, tkl.f32)))


def operands(*shapes: tuple[int, int], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.fixture
def emitted_for_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "default_target", lambda: AMX)


@pytest.mark.sweep(1)
@pytest.mark.usefixtures("emitted_for_amx")
@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (gemm, ((70, 64), (64, 96))),
        (gemm, ((40, 2080), (2080, 48))),
        (gemm_of_computed, ((70, 64), (48, 64))),
    ],
    ids=["blocks of buffers", "a long contraction", "computed tiles"],
)
def test_code_with_amx_compiles(
    kernel: tk.Kernel, shapes: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    text = kernel.text("mlir", *operands(*shapes))
    assert "tdpbf16ps" in text
    assert text.count('"syscall"') == 1
    flags = (*AMX.flags, _TRIPLE)
    outcome = invoke.run(session.Request(text.encode(), flags))
    assert outcome.data is not None, outcome.diagnostics


@pytest.mark.usefixtures("emitted_for_amx")
@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        (((40, 64), (64, 48)), torch.float32),
        (((40, 64), (64, 48)), torch.float16),
        (((40, 40), (40, 48)), torch.bfloat16),
        (((40, 64), (64, 50)), torch.bfloat16),
    ],
    ids=["f32", "f16", "contraction of 40", "columns at the edge"],
)
def test_other_matmuls_do_not_use_amx(
    shapes: tuple[tuple[int, int], tuple[int, int]], dtype: torch.dtype
) -> None:
    assert "tdpbf16ps" not in gemm.text("mlir", *operands(*shapes, dtype=dtype))


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 32, 48), (40, 64, 48), (70, 96, 96), (75, 1056, 48), (33, 2080, 96)],
)
def test_matmuls_match_torch(rows: int, depth: int, columns: int) -> None:
    a, b = operands((rows, depth), (depth, columns))
    torch.testing.assert_close(gemm(a, b), a.float() @ b.float(), atol=1e-3, rtol=1e-4)
    expected = 2 * a.float() @ b.float() + 1
    computed = gemm_of_computed(a, b.t().contiguous())
    torch.testing.assert_close(computed, expected, atol=1e-3, rtol=1e-4)


def flags_of(text: str) -> Callable[[], frozenset[str]]:
    return lambda: frozenset(text.split())


def test_this_machine_is_used_without_amx_that_linux_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "host_architecture", lambda: "x86_64")
    usable = partial(host._usable, AMX)
    everything = "avx2 fma avx512f avx512bw avx512vl avx512dq"
    monkeypatch.setattr(targets, "host_flags", flags_of(f"{everything} amx_tile amx_bf16"))
    assert usable().has_amx
    monkeypatch.setattr(targets, "host_flags", flags_of(everything))
    assert not usable().has_amx
    assert usable().features.endswith("-amx-tile,-amx-bf16")


def test_flags_of_amx_need_the_permission_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_cpuinfo", lambda: "flags\t\t: fma amx_bf16 amx_tile\n")
    found = {}
    for is_granted in (True, False):
        monkeypatch.setattr(targets, "request_amx", lambda granted=is_granted: granted)
        found[is_granted] = targets.host_flags.__wrapped__()
    assert found == {True: {"fma", "amx_bf16", "amx_tile"}, False: {"fma"}}
