"""Kernels for GPUs: examples in Triton's interpreter, PTX without a GPU, layouts and errors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.triton_interpreter import triton_interpreter
from turbine import errors
from turbine.kernel.backends.triton import compilation
from turbine.kernel.call.gpu_launcher import is_aligned
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.inspection.gpu_text import code_for
from turbine.kernel.trace.types import DTYPES

M, N, K, BM, BN, BK = tkl.symbols("M N K BM BN BK")
T = tkl.types.T
# Those that take Triton's interpreter few seconds; ops of others are in test_properties.py.
FLOATS_OF_8_BITS = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
EXAMPLES = (
    "batched_gemm",
    "cumsum",
    "gemm_epilogue",
    "histogram",
    "int8_matmul",
    "layernorm",
    "softmax",
    "vector_add",
)


@tk.gen.kernel(M)
def softmax(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N)).to(tkl.f32)
    powers = tkl.exp(row - tkl.max(row))
    tkl.store(y, (i, 0), powers / tkl.sum(powers))


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 64, BN: 64, BK: 32})
def gemm(
    a: tkl.InputBuffer[M, K, T], b: tkl.InputBuffer[K, N, T], c: tkl.OutputBuffer[M, N, T]
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def body(k: Any, acc: Any) -> Any:
        x = tkl.load(a, (i, k * BK), (BM, BK))
        return tkl.dot(x, tkl.load(b, (k * BK, j), (BK, BN)), acc)

    tkl.store(c, (i, j), body[0])


def run_in_triton(kernel: Kernel, named: Mapping[str, Any], args: Any = None) -> Any:
    """What `Kernel.run` does, in Triton's interpreter; it has no bf16, which goes through f32."""
    wide = {name: _widen(value) for name, value in named.items()}
    given = triton_interpreter().call(kernel, **wide)
    if all(wide[name] is value for name, value in named.items()):
        return given
    return tuple(map(_narrow, given)) if isinstance(given, tuple) else _narrow(given)


def _widen(value: Any) -> Any:
    is_bf16 = isinstance(value, Tensor) and value.dtype is torch.bfloat16
    return value.float() if is_bf16 else value


def _narrow(value: Tensor) -> Tensor:
    return value.bfloat16() if value.dtype is torch.float32 else value


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_as_on_a_gpu(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Kernel, "run", run_in_triton)
    monkeypatch.setattr(Kernel, "repeat_call", lambda *_: None)
    assert importlib.import_module(f"examples.kernels.{name}").main() == 0
    assert "same as PyTorch" in capsys.readouterr().out


def test_strided_tensors_are_read_in_place() -> None:
    for x in (torch.randn(30, 7).T, torch.randn(7, 60)[:, ::2], torch.randn(1, 30).expand(7, 30)):
        close = triton_interpreter().call(softmax, x)
        torch.testing.assert_close(close, torch.softmax(x, -1))
    assert "x_stride1" in softmax.text("triton", torch.randn(30, 7).T[:, ::2])


def test_large_tensors_have_wide_indices() -> None:
    x = torch.empty(1, device="meta").expand(1 << 20, 1 << 12)
    assert "program = tl.program_id(0).to(tl.int64)" in softmax.text("triton", x)
    assert "int64" not in softmax.text("triton", x[:4])


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_to_ptx_without_a_gpu(capability: int) -> None:
    half = torch.ones(128, 64).half()
    for kernel, args, instruction in (
        (softmax, (torch.ones(4, 1024),), "ld.global.v4"),
        (gemm, (half, half.T.contiguous()), "wgmma" if capability == 90 else "mma.sync"),
    ):
        code, aligned = code_for(kernel, args)
        known = [argument for argument in code.arguments if is_aligned(argument, aligned)]
        target = compilation.nvidia_target(capability)
        ptx = compilation.compile_code(code, target, known).asm["ptx"]
        assert f".target sm_{capability}" in ptx
        assert instruction in ptx


def test_text_shows_triton_source_and_ptx() -> None:
    x = torch.ones(3, 40)
    assert "tt.reduce" in softmax.text("ttir", x)
    assert ".entry softmax" in softmax.text("ptx", x)


@tk.gen.kernel()
def count_bytes(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[4, tkl.i8].filled(0)) -> None:
    tkl.atomic_add(y, (tkl.load(x, (0,), (4,)),), 1)


def test_an_op_without_an_instruction_is_an_error_with_its_line() -> None:
    with pytest.raises(errors.KernelError, match="atomic_add of i8 elements has no instr") as error:
        count_bytes.text("triton", torch.zeros(4, dtype=torch.int64))
    assert error.value.where is not None
    assert "test_triton.py" in error.value.where
    assert error.value.hint is not None
    assert "tkl.i32" in error.value.hint


def test_a_tile_too_large_for_a_gpu_is_an_error() -> None:
    with pytest.raises(errors.KernelError, match="at most 1048576"):
        softmax.text("triton", torch.empty(1, device="meta").expand(2, 1 << 21))


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    with pytest.raises(errors.KernelError, match="cannot be imported") as error:
        softmax.text("ptx", torch.ones(3, 40))
    assert "turbine[cuda]" in str(error.value.hint)


def test_tensors_of_two_devices_are_an_error() -> None:
    with pytest.raises(errors.KernelError, match="tensors on cpu and meta"):
        gemm.run({"a": torch.ones(2, 2), "b": torch.ones(2, 2, device="meta")})


@tk.gen.kernel()
def pick(
    x: tkl.InputBuffer[M, N, tkl.f32],
    place: tkl.InputBuffer[1, tkl.i64],
    y: tkl.OutputBuffer[1, tkl.f32].filled(-1),
) -> None:
    tkl.store(y, (0,), tkl.load(x, (1, tkl.load(place, (0,))), check=False))


def test_single_elements_out_of_range_are_masked_off() -> None:
    x = torch.arange(6.0).view(2, 3)
    for place, wanted in ((2, 5), (3, -1), (-1, -1)):
        assert triton_interpreter().call(pick, x, torch.tensor([place])).item() == wanted


@tk.gen.kernel(N // BN, blocks={BN: 256})
def convert(x: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
    start = (tkl.program_id(0) * BN,)
    tkl.store(y, start, tkl.load(x, start, (BN,)))


@tk.gen.kernel(N // BN, blocks={BN: 256})
def rounded(
    x: tkl.InputBuffer[N, tkl.f32], like: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[N, T]
) -> None:
    start = (tkl.program_id(0) * BN,)
    tkl.store(y, start, tkl.load(x, start, (BN,)))


@pytest.mark.parametrize("name", FLOATS_OF_8_BITS)
def test_floats_of_8_bits_are_converted_as_in_pytorch(name: str) -> None:
    dtype = DTYPES[name]
    every = torch.arange(256, dtype=torch.uint8).view(dtype.torch)
    floats = triton_interpreter().call(convert, every)
    torch.testing.assert_close(floats, every.float(), rtol=0, atol=0, equal_nan=True)
    edges = torch.tensor([0.0, -0.0, math.nan, math.inf, 464, 465, 61439, 61440, 248, 1e30, 1e-30])
    halfway = torch.cat([every.float() * 1.0625, torch.nextafter(every.float(), torch.zeros(()))])
    numbers = torch.cat([edges, -edges, halfway, torch.randn(500) * 10 ** torch.randn(500)])
    wanted = numbers.to(dtype.torch)
    found = triton_interpreter().call(rounded, numbers, torch.zeros_like(wanted))
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)


@tk.gen.kernel(N)
def far_apart(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[N, tkl.i64]) -> None:
    i = tkl.program_id(0)
    tkl.store(y, (i,), tkl.load(x, (i,)) + i * 5_000_000_000)


@tk.gen.kernel(5)
def outside(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[5, tkl.f32]) -> None:
    i = tkl.program_id(0)
    tkl.store(y, (i,), tkl.load(x, (i * 2**30,), (1,), other=-1)[0])


def test_indices_beyond_32_bits() -> None:
    found = triton_interpreter().call(far_apart, torch.arange(3))
    assert found.tolist() == [0, 5_000_000_001, 10_000_000_002]
    found = triton_interpreter().call(outside, torch.ones(8))
    assert found.tolist() == [1, -1, -1, -1, -1]


@tk.gen.kernel()
def largest(
    x: tkl.InputBuffer[N, T], value: tkl.OutputBuffer[1, T], place: tkl.OutputBuffer[1, tkl.i64]
) -> None:
    values, places = tkl.topk(tkl.load(x, (0,), (N,)), 1)
    tkl.store(value, (0,), values)
    tkl.store(place, (0,), places)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool], ids=str)
def test_the_first_of_sorted_elements_has_its_index(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 0, 7, 5, 0, 3]).to(dtype)
    value, place = triton_interpreter().call(largest, x)
    assert (value.dtype, value.item(), place.item()) == (dtype, x[2].item(), 2)
