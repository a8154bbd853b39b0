"""torch.compile on CUDA tensors: results, gradients and reports. `make test-gpu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine
from tests.dynamo.test_gpu_groups import CASES, Block
from turbine import config, zoo
from turbine.dynamo.entry import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

Run = Callable[..., Any]
ALWAYS = {"library_calls": "never"}  # kernels, without timing them


def compiled(function: Run, **options: Any) -> Run:
    torch._dynamo.reset()
    run: Run = torch.compile(function, backend=backend, options=options, fullgraph=True)
    return run


def on_gpu(args: Any) -> list[Any]:
    return [arg.cuda() if isinstance(arg, Tensor) else arg for arg in args]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_pytorch_does(name: str) -> None:
    function, args, _ = CASES[name]
    given = on_gpu(args)
    run = compiled(function, **ALWAYS)
    with torch.no_grad():
        expected = function(*given)
        for result in (run(*given), run(*given)):
            torch.testing.assert_close(result, expected, equal_nan=True)
    results = result if isinstance(result, tuple) else (result,)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    assert [one.stride() for one in results] == [one.stride() for one in wanted]


def test_tensors_of_another_alignment_and_stream() -> None:
    function, (x, bias), _ = CASES["chain"]
    run = compiled(function, **ALWAYS)
    padded, bias = torch.randn(5 * 70 + 1, device="cuda"), bias.cuda()
    for given in (padded[:-1].view(5, 70), padded[1:].view(5, 70)):
        torch.testing.assert_close(run(given, bias), function(given, bias))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        given = padded[1:].view(5, 70) * 3
        result = run(given, bias)
    torch.cuda.synchronize()
    torch.testing.assert_close(result, function(given, bias))
    assert x.shape == (5, 70)


@pytest.mark.parametrize("choice", ["auto", "never", "always"])
def test_gradients_are_those_of_pytorch(choice: str) -> None:
    model = Block().cuda()
    run = compiled(model, library_calls=choice)
    x = torch.randn(32, 64, device="cuda", requires_grad=True)
    mask = torch.randn(64, device="cuda")
    every = []
    for call in (model, run, run):
        result = call(x, mask)
        loss = (result * torch.linspace(0, 1, 64, device="cuda")).sum()
        every.append((result, *torch.autograd.grad(loss, (x, *model.parameters()))))
    torch.testing.assert_close(every[1], every[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(every[2], every[0], rtol=1e-4, atol=1e-5)


def test_random_numbers_and_writes_are_those_of_pytorch() -> None:
    def step(x: Tensor, state: Tensor) -> Tensor:
        before = torch.exp(state) * 2
        state.add_(1)
        return before + F.dropout(x * 2 + 1, 0.5) + torch.rand_like(x)

    x, results = torch.randn(64, 64, device="cuda"), []
    for call in (step, compiled(step), compiled(step, **ALWAYS)):
        state = torch.zeros(64, device="cuda")
        torch.manual_seed(0)
        results.append((call(x, state), state))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


@pytest.mark.parametrize("make", [zoo.bert, zoo.gpt2, zoo.llama, zoo.vit, zoo.resnet18])
def test_models_match_pytorch(make: Run) -> None:
    example = make()
    model, args = example.model.eval().cuda(), on_gpu(example.args)
    kwargs = {name: one.cuda() for name, one in example.kwargs.items()}
    with torch.no_grad():
        expected = model(*args, **kwargs)
        run = compiled(model, **ALWAYS)
        torch.testing.assert_close(run(*args, **kwargs), expected, rtol=1e-3, atol=1e-3)


def test_a_capture_in_a_cuda_graph() -> None:
    function, args, _ = CASES["norm"]
    given, run = on_gpu(args), compiled(function)
    with torch.no_grad():
        run(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = run(*given)
        given[0].add_(1)
        graph.replay()
        torch.testing.assert_close(results, function(*given))


def test_autocast_and_other_shapes() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()
    run = compiled(model)
    for rows in (8, 16, 24, 8):
        x = torch.randn(rows, 64, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)


def test_reports_tell_kernels_from_ops_of_pytorch() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()
    torch._dynamo.reset()  # after other sizes, those of a new graph are dynamic
    with config.override(library_calls="never"):
        report = turbine.explain(model, torch.randn(8, 64, device="cuda"))
    forward = report.graphs[0]
    (part,) = forward.parts
    assert part.strategy == "triton"
    assert set(part.ops) == {"aten.gelu.default", "aten.native_layer_norm.default"}
    assert [op.op for op in forward.left] == ["aten.addmm.default"]
    assert "fused_gelu_native_layer_norm" in str(report)


def test_kernels_that_are_slower_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbine.dynamo.gpu_graphs._compare", lambda kernel, library: (2e-6, 1e-6))
    function, args, _ = CASES["chain"]
    with config.override(library_calls="auto"):
        report = turbine.explain(function, *on_gpu(args))
    reasons = {op.reason for op in report.left}
    assert all(" faster: in " in reason for reason in reasons)
    assert len(report.left) == 4
