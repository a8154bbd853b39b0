"""Artifacts for NVIDIA GPUs: compiled anywhere, and run where there is a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.models import Fn
from turbine import errors, zoo
from turbine.runtime.artifact import Artifact

M, N, B = tkl.symbols("M N B")
T = tkl.types.T
ROWS = torch.export.Dim("rows", max=1000)


@tk.gen.kernel(M)
def scaled_softmax(
    x: tkl.InputBuffer[M, N, T], scale: tkl.f32, y: tkl.OutputBuffer[M, N, T]
) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N)).to(tkl.f32) * scale
    powers = tkl.exp(row - tkl.max(row))
    tkl.store(y, (i, 0), powers / tkl.sum(powers))


@tk.gen.kernel(N // B, blocks={B: 64})
def take(
    x: tkl.InputBuffer[M, T], at: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[N, T]
) -> None:
    place = (tkl.program_id(0) * B,)
    tkl.store(y, place, tkl.load(x, tkl.load(at, place, (B,))))


@tk.gen.kernel(N // B, blocks={B: 64})
def add_to(total: tkl.InOutBuffer[N, T], x: tkl.InputBuffer[N, T]) -> None:
    place = (tkl.program_id(0) * B,)
    tkl.store(total, place, tkl.load(total, place, (B,)) + tkl.load(x, place, (B,)))


def softmax_between(x: Tensor) -> Tensor:
    result: Tensor = scaled_softmax(x + 1, 2.0)
    return result * 3


def sum_of(x: Tensor, y: Tensor) -> Tensor:
    total = x + 1
    add_to(total, y)
    return total


def compiled(
    model: nn.Module, *args: Any, dynamic_shapes: object = None, target: str = "cuda:sm_80"
) -> Artifact:
    exported = turbine.aot.export(model.eval(), args=args, dynamic_shapes=dynamic_shapes)
    return exported.compile(target=target)


def code_of(artifact: Artifact, folder: Path) -> str:
    (path,) = artifact.save_vmfb(folder / "code.vmfb")[:1]
    return path.read_bytes().decode(errors="ignore")


# Anywhere


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("chip", "written"), [("sm_80", "sm_80"), ("sm_90", "sm_90a")])
def test_kernels_are_inside_of_the_code(chip: str, written: str, tmp_path: Path) -> None:
    artifact = compiled(Fn(softmax_between), torch.ones(8, 300), target=f"cuda:{chip}")
    code = code_of(artifact, tmp_path)
    assert re.search(rf"\.target {written}\s", code)
    (parameters,) = re.findall(r"\.entry scaled_softmax\((.*?)\)", code, re.DOTALL)
    assert parameters.count(".param .u64") == 3  # without the scratch memory of Triton
    assert artifact.driver == "cuda"


def test_sizes_are_passed_as_numbers_of_32_bits(tmp_path: Path) -> None:
    artifact = compiled(
        Fn(sum_of),
        *(torch.ones(70),) * 2,
        dynamic_shapes=(({0: ROWS}, {0: ROWS}),),
    )
    (parameters,) = re.findall(r"\.entry add_to\((.*?)\)", code_of(artifact, tmp_path), re.DOTALL)
    assert re.findall(r"\.param \.(\w+)", parameters) == ["u64", "u64", "u32"]


def test_a_tile_of_a_dynamic_size_is_an_error() -> None:
    columns = torch.export.Dim("columns", max=1000)
    with pytest.raises(errors.KernelError, match="scaled_softmax has tiles of dynamic sizes: N"):
        compiled(Fn(softmax_between), torch.ones(8, 300), dynamic_shapes=(({1: columns},),))


def test_a_kernel_needs_a_compute_capability() -> None:
    with pytest.raises(errors.UnknownTarget, match="kernels are not compiled for cuda:ampere"):
        compiled(Fn(softmax_between), torch.ones(8, 300), target="cuda:ampere")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without an NVIDIA GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    artifact = compiled(nn.ReLU(), torch.ones(3))
    with pytest.raises(errors.DeviceError, match="driver 'cuda' has no device here"):
        artifact(torch.ones(3))


# On a GPU


on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def gpu(test: Callable[..., None]) -> Any:
    for mark in on_gpu:
        test = mark(test)
    return test


def capability() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"cuda:sm_{major}{minor}"


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def shared_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (one.repeat_interleave(3, 1) for one in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def padded(x: Tensor) -> Tensor:
    """Attention of three heads in one tensor, whose second sequence is half as long."""
    q, k, v = x.view(2, 40, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    seen = torch.arange(40, device=x.device) < torch.tensor([[40], [20]], device=x.device)
    y: Tensor = F.scaled_dot_product_attention(q, k, v, seen[:, None, None])
    return y.transpose(1, 2).flatten(2)


class GatedLayer(nn.Module):
    """A feed-forward layer as in Llama."""

    def __init__(self, columns: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(columns)
        self.gate, self.up = (nn.Linear(columns, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, columns)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        result: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


def images(channels: int) -> Tensor:
    return torch.randn(2, channels, 14, 15)


HEADS = torch.randn(2, 3, 70, 40)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "kernel": (lambda: Fn(softmax_between), (torch.randn(8, 300),)),
    "linear": (lambda: nn.Linear(64, 33), (torch.randn(5, 64),)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(64, 2, 128, batch_first=True),
        (torch.randn(2, 40, 64),),
    ),
    "causal attention": (lambda: Fn(attention), (HEADS, HEADS.flip(0), HEADS.flip(2))),
    "shared heads": (lambda: Fn(shared_heads), (HEADS, HEADS[:, :1], HEADS.flip(0)[:, :1])),
    "gated layer": (lambda: GatedLayer(96, 200), (torch.randn(2, 40, 96),)),
    "padded sequences": (lambda: Fn(padded), (torch.randn(2, 40, 96),)),
    "softmax": (lambda: nn.Softmax(-1), (torch.randn(2, 3, 6, 77),)),
    "group norm": (lambda: nn.GroupNorm(4, 16), (images(16),)),
    "pointwise convolution": (lambda: nn.Conv2d(16, 32, 1, 2), (images(16),)),
    "convolution": (lambda: nn.Conv2d(3, 16, 7, 2, 3), (images(3),)),
    "depthwise convolution": (lambda: nn.Conv2d(16, 16, 3, groups=16), (images(16),)),
    "pooling": (lambda: nn.MaxPool2d(3, 2, 1), (images(8),)),
    "product of columns": (lambda: Fn(lambda x: x.T @ x), (torch.randn(33, 17),)),
}


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_results_match_pytorch(name: str, dtype: torch.dtype) -> None:
    made, args = MODELS[name]
    model = made().to(dtype).eval()
    artifact = compiled(model, *(x.to(dtype) for x in args), target=capability())
    on_device = [x.to("cuda", dtype) for x in args]
    result = artifact(*on_device)
    assert result.device == on_device[0].device
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    with torch.no_grad():
        expected = model.cuda()(*on_device)
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)


@gpu
def test_tensors_and_arrays_of_the_cpu_are_copied() -> None:
    model, x = nn.Linear(64, 33).eval(), torch.randn(5, 64)
    artifact = compiled(model, x, target=capability())
    expected = model(x).detach()
    torch.testing.assert_close(artifact(x), expected, atol=1e-5, rtol=1e-5)
    numpy.testing.assert_allclose(artifact(x.numpy()), expected.numpy(), atol=1e-5, rtol=1e-5)


@gpu
def test_dynamic_sizes_run() -> None:
    model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.LayerNorm(40)).eval()
    artifact = compiled(model, torch.ones(3, 24), dynamic_shapes=({0: ROWS},), target=capability())
    model.cuda()
    for rows in (1, 7, 300):
        x = torch.randn(rows, 24, device="cuda")
        torch.testing.assert_close(artifact(x), model(x), atol=1e-4, rtol=1e-4)


@gpu
def test_tensors_anywhere_in_memory_are_read() -> None:
    artifact = compiled(Fn(softmax_between), torch.ones(8, 300), target=capability())
    x = torch.randn(9, 301, device="cuda")
    for view in (x[1:, 1:], x[:8, :300].T.contiguous().T, x.flatten()[1:2401].view(8, 300)):
        torch.testing.assert_close(artifact(view), softmax_between(view))


@gpu
def test_written_arguments_are_written() -> None:
    def increment(x: Tensor) -> Tensor:
        return x.add_(1) * 2

    artifact = compiled(Fn(increment), torch.ones(5), target=capability())
    x = torch.ones(5, device="cuda")
    assert artifact(x).tolist() == [4.0] * 5
    assert x.tolist() == [2.0] * 5


@gpu
def test_state_is_kept_on_the_gpu() -> None:
    model = nn.BatchNorm1d(8)
    with pytest.warns(errors.TrainingModeWarning):
        exported = turbine.aot.export(model.train(), args=(torch.randn(4, 8),))
    artifact = exported.compile(target=capability())
    x = torch.randn(4, 8, device="cuda")
    model.cuda()
    for _ in range(3):
        torch.testing.assert_close(artifact(x), model(x), atol=1e-5, rtol=1e-5)
    assert model.running_mean is not None
    mean = artifact.state["running_mean"]
    torch.testing.assert_close(mean.cpu(), model.running_mean.cpu(), atol=1e-5, rtol=1e-5)


@gpu
def test_an_index_out_of_range_is_an_error() -> None:
    artifact = compiled(
        Fn(lambda x, at: take(x, at)), torch.ones(9), torch.zeros(5).long(), target=capability()
    )
    x, at = torch.arange(9.0, device="cuda"), torch.tensor([8, 0, 3, 3, 1], device="cuda")
    assert artifact(x, at).tolist() == [8.0, 0.0, 3.0, 3.0, 1.0]
    with pytest.raises(errors.RunError, match="an index is out of range for axis 0 of x"):
        artifact(x, at + 1)
    assert artifact(x, at).tolist() == [8.0, 0.0, 3.0, 3.0, 1.0]


@gpu
def test_an_empty_tensor_is_an_error() -> None:
    artifact = compiled(
        Fn(sum_of),
        *(torch.ones(70),) * 2,
        dynamic_shapes=(({0: torch.export.Dim("n", min=0, max=100)},) * 2,),
        target=capability(),
    )
    empty, x = torch.ones(0, device="cuda"), torch.ones(3, device="cuda")
    with pytest.raises(errors.ArgumentError, match="has size 0 along axis 0"):
        artifact(empty, empty)
    assert artifact(x, x).tolist() == [3.0] * 3


@gpu
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "resnet18"])
def test_models_of_the_zoo_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    sizes = {"batch": 2} if name == "resnet18" else {"batch": 2, "layers": 2}
    example = getattr(zoo, name)(**sizes)
    exported = turbine.aot.export(example.model, args=example.args, kwargs=example.kwargs)
    artifact = exported.compile(target=capability())
    args, kwargs = (
        torch.utils._pytree.tree_map(lambda x: x.cuda(), given)
        for given in (example.args, example.kwargs)
    )
    with torch.no_grad():
        expected = example.model.cuda()(*args, **kwargs)
    result = artifact(*args, **kwargs)
    torch.testing.assert_close(result, expected, atol=2e-3, rtol=2e-3)
