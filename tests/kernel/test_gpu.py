"""Kernels on CUDA tensors, in every way in which PyTorch calls ops: `make test-gpu`."""

from __future__ import annotations

import importlib
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.op_table import ROWS, SAMPLES, rows_of
from tests.kernel.test_lang_ops import PROGRAMS, kernel_of, places_of
from tests.kernel.test_triton import FLOATS_OF_8_BITS, convert, gemm, rounded, softmax
from turbine import config, errors
from turbine.kernel.trace.types import DTYPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

M, N, K, B, BM, BN, BK = tkl.symbols("M N K B BM BN BK")
T = tkl.types.T
EXAMPLES = sorted(p.stem for p in (Path(__file__).parents[2] / "examples/kernels").glob("*.py"))
# PyTorch has no integer matmul on GPUs, with which this one compares.
WITHOUT_REFERENCE = {"int8_matmul"}


@tk.gen.kernel(N // B, blocks={B: 512})
def scale_(x: tkl.InOutBuffer[N, T], by: tkl.f32) -> None:
    start = tkl.program_id(0) * B
    tkl.store(x, (start,), by * tkl.load(x, (start,), (B,)))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(64, 300, device="cuda")


def agrees(result: Tensor, x: Tensor) -> None:
    torch.testing.assert_close(result, torch.softmax(x, -1))


@pytest.mark.parametrize("sample", SAMPLES)
def test_ops_match_pytorch(sample: str) -> None:
    made, places = SAMPLES[sample], places_of(sample, rows_of(sample))
    kernel = kernel_of(rows_of(sample), made.x.dtype, made.tile, places)
    outputs = dict(zip(dict.fromkeys(s for s, _ in places), _on_gpu(kernel, made), strict=True))
    expected = [result for row in rows_of(sample) for result in row.on_tensors(made)]
    for (stack, place), wanted in zip(places, expected, strict=True):
        torch.testing.assert_close(outputs[stack][place], wanted, equal_nan=True)
    assert ROWS


def _on_gpu(kernel: tk.Kernel, sample: Any) -> list[Tensor]:
    return [output.cpu() for output in kernel(x=sample.x.cuda(), y=sample.y.cuda())]


@pytest.mark.parametrize("name", [name for name, p in PROGRAMS.items() if p.error is None])
def test_programs_match_pytorch(name: str) -> None:
    program = PROGRAMS[name]
    given = program.kernel(*[argument.cuda() for argument in program.args])
    results = given if isinstance(given, tuple) else (given,)
    torch.testing.assert_close([result.cpu() for result in results], list(program.expected))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in WITHOUT_REFERENCE])
def test_examples_run_on_the_gpu(name: str) -> None:
    with torch.device("cuda"):
        assert importlib.import_module(f"examples.kernels.{name}").main() == 0


def test_repeated_calls_take_any_tensors_of_their_kind(x: Tensor) -> None:
    for given in (x, x + 1, x[1:], x, x[:, 1:], x.half(), x):
        agrees(softmax(given), given)


def test_strided_and_misaligned_tensors(x: Tensor) -> None:
    flat = torch.randn(64 * 304 + 1, device="cuda")[1:].view(64, 304)
    for given in (x.T, x[:, ::2], x[:1].expand(64, 300), flat, flat.clone(), x[:0]):
        agrees(softmax(given), given)


def test_compiled_exported_and_captured(x: Tensor) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return softmax(x * 2)  # type: ignore[no-any-return]

    agrees(torch.compile(Model(), fullgraph=True)(x), x * 2)
    agrees(torch.export.export(Model(), (x,)).module()(x), x * 2)
    torch.library.opcheck(softmax.op.op, (x,), test_utils=("test_schema", "test_faketensor"))
    still, graph = x.clone(), torch.cuda.CUDAGraph()
    softmax(still)
    with torch.cuda.graph(graph):
        result = softmax(still)
    still.copy_(x + torch.randn_like(x))
    graph.replay()
    agrees(result, still)


def test_calls_run_on_the_current_stream(x: Tensor) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        tripled = x * 3
        result = softmax(tripled)
    stream.synchronize()
    agrees(result, x * 3)


def test_in_out_arguments_are_updated_in_place() -> None:
    before = torch.randn(10_000, device="cuda")
    for view in (slice(None), slice(None, None, 2)):
        x = before.clone()
        scale_(x[view], 0.5)
        wanted = before.clone()
        wanted[view] *= 0.5
        torch.testing.assert_close(x, wanted)


def test_gradients(x: Tensor) -> None:
    layernorm = importlib.import_module("examples.kernels.layernorm").layernorm
    leaves = [leaf.clone().requires_grad_() for leaf in (x, x[0], x[1])]
    ours = layernorm(*leaves)
    theirs = torch.nn.functional.layer_norm(leaves[0], (300,), leaves[1], leaves[2])
    slope = torch.randn_like(x)
    torch.testing.assert_close(
        torch.autograd.grad(ours, leaves, slope),
        torch.autograd.grad(theirs, leaves, slope),
        atol=1e-4,
        rtol=1e-3,
    )


def test_matmul_of_sizes_without_and_with_edges() -> None:
    for shape in ((256, 128, 64), (100, 70, 33), (1, 1, 1), (4, 3, 0)):
        m, n, k = shape
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            a, b = (torch.randn(s, device="cuda").to(dtype) for s in ((m, k), (k, n)))
            wanted = (a.double() @ b.double()).to(dtype)
            torch.testing.assert_close(gemm(a, b), wanted, atol=1e-2, rtol=1e-2)


def test_mistakes_have_errors() -> None:
    on_gpu = torch.ones(3, device="cuda")
    with pytest.raises(errors.KernelError, match="tensors on cuda:0 and cpu"):
        gemm(on_gpu[None], torch.ones(3, 3))
    for report in (tk.explain, tk.check):
        with pytest.raises(errors.KernelError, match="takes CPU tensors"):
            report(softmax, on_gpu[None])
    failing = PROGRAMS["failed assertion"]
    with pytest.raises(errors.KernelError, match="too large"):
        failing.kernel(failing.args[0].cuda())


@pytest.mark.parametrize("name", FLOATS_OF_8_BITS)
def test_floats_of_8_bits_are_converted_as_in_pytorch(name: str) -> None:
    dtype = DTYPES[name].torch
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    floats = convert(every.cuda()).cpu()
    torch.testing.assert_close(floats, every.float(), rtol=0, atol=0, equal_nan=True)
    numbers = torch.cat([every.float() * 1.0625, torch.randn(500) * 10 ** torch.randn(500)])
    wanted = numbers.to(dtype)
    found = rounded(numbers.cuda(), torch.zeros_like(wanted).cuda()).cpu()
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)


def test_the_interpreter_takes_tensors_of_the_gpu(x: Tensor) -> None:
    agrees(softmax.interpret(x[:2]), x[:2])
    before = torch.ones(3, device="cuda")
    scale_.interpret(before, 2.0)
    assert before.tolist() == [2, 2, 2]


def test_code_in_the_docs_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/gpu.md").read_text()
    page = tmp_path / "page.py"
    page.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)))
    runpy.run_path(str(page))


def test_text_is_for_this_gpu(x: Tensor) -> None:
    major, minor = torch.cuda.get_device_capability()
    assert f".target sm_{major}{minor}" in softmax.text("ptx", x)
    softmax(x)
    assert "on cuda:0" in softmax.explain_recompiles()


# Tuning


@tk.gen.kernel(M // BM, N // BN)
def product(
    a: tkl.InputBuffer[M, K, T], b: tkl.InputBuffer[K, N, T], c: tkl.OutputBuffer[M, N, T]
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def body(k: Any, acc: Any) -> Any:
        x = tkl.load(a, (i, k * BK), (BM, BK))
        return tkl.dot(x, tkl.load(b, (k * BK, j), (BK, BN)), acc)

    tkl.store(c, (i, j), body[0])


@pytest.fixture
def own_cache(tmp_path: Path) -> Iterator[None]:
    with config.override(cache_dir=tmp_path / "cache"):
        yield


def test_tuned_sizes_and_options_are_used(own_cache: None, tmp_path: Path) -> None:
    a, b = torch.randn(2, 512, 512, device="cuda", dtype=torch.float16).unbind(0)
    before = product(a, b)
    report = product.tune(a, b, seconds=20)
    assert len(report.trials) > 3
    assert report.row is not None
    assert report.trials[0].configuration == {"BM": 128, "BN": 256, "BK": 64}
    assert report.speedup >= 1
    torch.testing.assert_close(product(a, b), before, atol=0.1, rtol=1e-2)
    assert product.explain_recompiles().endswith(", tuned on cuda:0")
    compiled = torch.compile(lambda a, b: product(a, b) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(a, b), before + 1, atol=0.1, rtol=1e-2)
    assert report.save(tmp_path / "tuned.json").exists()


def test_candidates_without_memory_on_the_gpu_are_dropped(own_cache: None) -> None:
    a, b = torch.randn(2, 512, 512, device="cuda", dtype=torch.float16).unbind(0)
    large = {"BM": 128, "BN": 128, "BK": 128, "num_stages": 6}
    report = product.tune(a, b, seconds=60, candidates=[large, {"num_warps": 4}, {"group_rows": 1}])
    problems = [trial.problem for trial in report.trials]
    assert problems[1] is not None
    assert problems[2:] == [None, None]
    assert "dropped" in str(report)


def test_tuning_changes_no_argument(own_cache: None) -> None:
    x = torch.randn(100_000, device="cuda")
    before = x.clone()
    report = scale_.using().tune(x, 1.5, seconds=5, candidates=[{"num_warps": 8}])
    assert torch.equal(x, before)
    assert [trial.problem for trial in report.trials] == [None, None]
    with pytest.raises(errors.KernelError, match="B is set by blocks="):
        scale_.tune(x, 1.5, candidates=[{"B": 64}])


def test_artifacts_have_tuned_sizes(own_cache: None) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return product(a, b)  # type: ignore[no-any-return]

    a, b = torch.randn(2, 256, 256, device="cuda", dtype=torch.float16).unbind(0)
    product.tune(a, b, seconds=30, candidates=[{"BM": 64, "BN": 64, "num_warps": 4}])
    major, minor = torch.cuda.get_device_capability()
    target = f"cuda:sm_{major}{minor}"
    artifact = turbine.aot.export(Model(), args=(a.cpu(), b.cpu())).compile(target=target)
    torch.testing.assert_close(artifact(a, b), a @ b, atol=0.1, rtol=1e-2)
