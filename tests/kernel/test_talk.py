"""The kernels of the talk that introduced TK, and its names.

Listings are those of the talk, except for fixed indices and imports.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import shark_turbine.kernel as tk
import shark_turbine.kernel.lang as tkl
import torch
from iree.turbine.kernel._support.tracing import AOTLaunchContext, DebugLaunchContext
from shark_turbine.aot import export

from turbine import errors

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
BLOCK_M, BLOCK_N, BLOCK_K = tkl.sym.BLOCK_M, tkl.sym.BLOCK_N, tkl.sym.BLOCK_K


@tk.gen.kernel(M)
def softmax(input: tkl.InputBuffer[M, K, tkl.f32], output: tkl.OutputBuffer[M, K, tkl.f32]) -> None:
    row_index = tkl.program_id(0)
    row = tkl.load(input, (row_index, 0), (1, K))
    row_minus_max = row - tkl.max(row)
    numerator = tkl.exp2(row_minus_max)
    denominator = tkl.sum(numerator)
    softmax_output = numerator / denominator
    tkl.store(output, (row_index, 0), softmax_output)


@tk.gen.kernel(M // BLOCK_M, N // BLOCK_N)
def gemm(
    A: tkl.InputBuffer[M, K, tkl.f16],
    B: tkl.InputBuffer[N, K, tkl.f16],
    output: tkl.OutputBuffer[M, N, tkl.f16],
) -> None:
    grid_m = tkl.program_id(0)
    grid_n = tkl.program_id(1)

    acc = tkl.constant((BLOCK_M, BLOCK_N), tkl.f32, 0.0)

    @tkl.for_loop(0, K // BLOCK_K, init_args=[acc])
    def body(i: Any, c: Any) -> Any:
        a = tkl.load(A, (grid_m * BLOCK_M, i * BLOCK_K), (BLOCK_M, BLOCK_K))
        b = tkl.load(B, (grid_n * BLOCK_N, i * BLOCK_K), (BLOCK_N, BLOCK_K))
        b = tkl.transpose(b, (1, 0))
        return (tkl.dot(a, b, c),)

    tkl.store(output, (grid_m * BLOCK_M, grid_n * BLOCK_N), body[0])


HEADS, QUERIES, KEYS, HEAD = tkl.sym.HEADS, tkl.sym.QUERIES, tkl.sym.KEYS, tkl.sym.HEAD


@tk.gen.kernel(HEADS, QUERIES // BLOCK_M)
def flash_attention(
    Q: tkl.InputBuffer[HEADS, QUERIES, HEAD, tkl.f16],
    K: tkl.InputBuffer[HEADS, KEYS, HEAD, tkl.f16],
    V: tkl.InputBuffer[HEADS, KEYS, HEAD, tkl.f16],
    Out: tkl.OutputBuffer[HEADS, QUERIES, HEAD, tkl.f16],
    qk_scale: tkl.f32,
) -> None:
    """The inner loop that the talk shows, for queries that see every key."""
    head, start_m = tkl.program_id(0), tkl.program_id(1)
    q = tkl.load(Q, (head, start_m * BLOCK_M, 0), (1, BLOCK_M, HEAD))[0]
    m_i = tkl.constant((BLOCK_M,), tkl.f32, -math.inf)
    l_i = tkl.constant((BLOCK_M,), tkl.f32, 0.0)
    acc = tkl.constant((BLOCK_M, HEAD), tkl.f32, 0.0)

    @tkl.for_loop(0, KEYS // BLOCK_N, init_args=[acc, l_i, m_i])
    def inner(start_n: Any, acc: Any, l_i: Any, m_i: Any) -> Any:
        k = tkl.load(K, (head, start_n * BLOCK_N, 0), (1, BLOCK_N, HEAD))[0]
        qk = tkl.dot(q, tkl.transpose(k, (1, 0)))
        m_ij = tkl.maximum(m_i, tkl.max(qk, 1) * qk_scale)
        qk = qk * qk_scale - m_ij[:, None]
        p = tkl.exp2(qk)
        l_ij = tkl.sum(p, 1)
        alpha = tkl.exp2(m_i - m_ij)
        l_i = l_i * alpha + l_ij
        acc = acc * alpha[:, None]
        v = tkl.load(V, (head, start_n * BLOCK_N, 0), (1, BLOCK_N, HEAD))[0]
        acc = tkl.dot(tkl.to_dtype(p, tkl.f16), v, acc)
        return acc, l_i, m_ij

    acc, l_i, _ = inner
    tkl.store(Out, (head, start_m * BLOCK_M, 0), (acc / l_i[:, None])[None])


class NN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return softmax(x)


def softmax_of_two(x: torch.Tensor) -> torch.Tensor:
    return (x * math.log(2)).softmax(-1)


# The listings


@pytest.mark.parametrize("shape", [(64, 64), (3, 5)])
def test_softmax(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    for result in (softmax(x), softmax.interpret(x)):
        torch.testing.assert_close(result, softmax_of_two(x))


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("m", "n", "k"), [(256, 128, 64), (70, 33, 100)])
def test_gemm(m: int, n: int, k: int) -> None:
    a, b = torch.randn(m, k).half(), torch.randn(n, k).half()
    expected = (a.float() @ b.float().T).half()
    torch.testing.assert_close(gemm(a, b), expected, rtol=1e-2, atol=1e-2)


def test_flash_attention() -> None:
    blocked = flash_attention.using(BLOCK_M=32, BLOCK_N=16)
    q = torch.randn(2, 50, 32).half()
    k, v = (torch.randn(2, 70, 32).half() for _ in range(2))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    result = blocked(q, k, v, math.log2(math.e) / math.sqrt(32))
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)


def test_a_kernel_in_a_model_runs_eagerly_and_exported() -> None:
    model, a = NN(), torch.randn(64, 64)
    with torch.no_grad():
        expected = softmax_of_two(model.linear(a))
        torch.testing.assert_close(model.forward(a), expected)
    compiled = export(model, a).compile(save_to=None)
    torch.testing.assert_close(compiled(a), expected)


def test_the_traced_graph_is_printed() -> None:
    text = softmax.text("fx")
    for line in (
        "input: InputBuffer[M, K, f32]",
        "load: [1, K, f32] = load(input, (program_id(0), 0), (1, K))",
        "max: [f32] = max(load, (0, 1))",
        "store(output, (program_id(0), 0), truediv)",
    ):
        assert line in text


# Names of iree-turbine


@tk.gen.thread(N // BLOCK_N)
def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
    start = tkl.program_id(0) * BLOCK_N
    tkl.store(y, (start,), 2 * tkl.load(x, (start,), (BLOCK_N,)))


def test_a_thread_in_a_test_context_prints_its_code_without_running(capsys: Any) -> None:
    y = torch.zeros(10)
    with tk.gen.TestLaunchContext({BLOCK_N: 4, M: 7}):
        double(torch.ones(10), y)
    assert y.tolist() == [0] * 10
    printed = capsys.readouterr().out
    assert printed.startswith("module {")
    assert "arith.constant 4 : index" in printed


def test_a_thread_writes_to_passed_outputs() -> None:
    y, z = torch.zeros(10), torch.zeros(10)
    double(torch.ones(10), y)
    with DebugLaunchContext():
        double(torch.ones(10), y=z)
    assert (y.tolist(), z.tolist()) == ([2] * 10, [2] * 10)


def test_a_thread_without_outputs_is_an_error() -> None:
    with pytest.raises(errors.KernelError, match="double takes x, y, and was given 1 arguments"):
        double(torch.ones(10))
    with pytest.raises(errors.KernelError, match=r"the output y is \[10\], and was given \[3\]"):
        double(torch.ones(10), torch.zeros(3))


def test_a_module_context_suggests_the_replacement() -> None:
    with pytest.raises(errors.KernelError, match="not launched into a module") as caught:
        AOTLaunchContext(None, {})
    assert "turbine.aot.export" in str(caught.value)


def test_buffer_types_accept_address_spaces() -> None:
    here = tkl.AddressSpace.GLOBAL_MEMORY
    assert tkl.InputBuffer[M, here, tkl.f16] == tkl.InputBuffer[M, tkl.f16]
    with pytest.raises(errors.KernelError, match=r"is in AddressSpace\.SHARED_MEMORY"):
        tkl.InputBuffer[M, tkl.AddressSpace.SHARED_MEMORY, tkl.f16]


def test_grids_are_written_as_tkl_grid() -> None:
    @tk.gen.kernel(*tkl.Grid[M])
    def copy(x: tkl.InputBuffer[M, tkl.f32], y: tkl.OutputBuffer[M, tkl.f32]) -> None:
        row: tkl.Index = tkl.program_id(0)
        one: tkl.Vector = tkl.load(x, (row,))
        tkl.store(y, (row,), one)

    assert copy.interpret(torch.ones(3)).tolist() == [1, 1, 1]


def test_debug_mode_is_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tk.DEBUG
    monkeypatch.setenv("TURBINE_INTERPRET", "1")
    assert tk.is_debug()
    assert tkl.is_debug()
