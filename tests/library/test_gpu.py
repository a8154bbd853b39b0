"""Kernels of programs for NVIDIA GPUs: which ops they replace, and that they match PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine
from tests.library.placing import count, exported, placed
from tests.models import Fn
from turbine import errors, target
from turbine.capture.effects import is_pointwise
from turbine.capture.rules.convolution import as_matmul
from turbine.library import gpu_matmul
from turbine.library.gpu_matmul import Form, choose_form
from turbine.library.gpu_reductions import all_hold
from turbine.library.rows import layer_norm, softmax

programs = pytest.mark.sweep(1, "programs")

GPU = target.parse("cuda:sm_90")
aten = torch.ops.aten


def kernels_of(model: nn.Module, *args: Tensor, dynamic_shapes: object = None) -> list[str]:
    """The names of the kernels in a program for a GPU, in order."""
    program = placed(exported(model, *args, dynamic_shapes=dynamic_shapes), GPU)
    names = [str(node.target) for node in program.graph.graph.nodes]
    return [name.split(".")[1].rstrip("_0123456789") for name in names if name.startswith("tk.")]


@programs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_transformer_is_made_of_kernels(dtype: torch.dtype) -> None:
    model = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True).to(dtype)
    assert kernels_of(model, torch.randn(2, 40, 64, dtype=dtype)) == [
        *("matmul", "attention", "matmul"),
        *("layer_norm", "matmul", "matmul", "layer_norm"),
    ]


def test_rows_of_narrow_floats_are_not_widened_in_memory() -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.Softmax(-1)).half()
    program = placed(exported(model, torch.randn(3, 64).half()), GPU)
    assert count(program, layer_norm.op.op, softmax.op.op) == 2
    assert count(program, aten._to_copy.default) == 0


class WrittenRmsNorm(nn.Module):
    """As Llama of the transformers package: rounded before the weight."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


RMS_NORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "of PyTorch": (lambda: nn.RMSNorm(160, eps=1e-5), "rms_norm"),
    "without a weight": (lambda: nn.RMSNorm(160, eps=1e-5, elementwise_affine=False), "rms_norm"),
    "written": (lambda: WrittenRmsNorm(160), "rounded_rms_norm"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", RMS_NORMS)
def test_rms_norms_are_kernels(name: str, dtype: torch.dtype) -> None:
    made, kernel = RMS_NORMS[name]
    model, x = made().to(dtype), torch.randn(2, 3, 160).to(dtype)
    program = placed(exported(model, x), GPU)
    (called,) = [node for node in program.graph.graph.nodes if str(node.target).startswith("tk.")]
    is_f32 = dtype == torch.float32
    assert str(called.target) == f"tk.{'rms_norm' if is_f32 else kernel}.default"
    assert not [node for node in program.graph.graph.nodes if is_pointwise(node.target)]
    (result,) = program.graph(*model.parameters(), x)
    torch.testing.assert_close(result, model(x).detach(), atol=1e-5, rtol=1e-2)


def sums_of_other_axes(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(1, keepdim=True) / 64 + 1e-5)


def other_counts(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / 63 + 1e-5)


@pytest.mark.parametrize("function", [sums_of_other_axes, other_counts])
def test_no_other_sums_are_rms_norms(function: Callable[[Tensor], Tensor]) -> None:
    assert kernels_of(Fn(function), torch.randn(64, 64, 64)) == []


def test_rms_norms_of_dynamic_rows_are_kernels() -> None:
    shapes = ({0: torch.export.Dim("batch", max=100)},)
    assert kernels_of(nn.RMSNorm(160), torch.randn(4, 3, 160), dynamic_shapes=shapes) == [
        "rms_norm"
    ]


def test_operands_are_read_where_they_are() -> None:
    def products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.T @ y, torch.bmm(x[None], y.T[None])

    program = placed(exported(Fn(products), torch.randn(40, 40), torch.randn(40, 40)), GPU)
    assert count(program, aten.mm.default, aten.bmm.default) == 0
    assert count(program, aten.permute.default) == 1  # of y, below the axis of the batch


@programs
@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (nn.Conv2d(8, 16, 1, 2), (2, 8, 9, 9), ["matmul"]),
        (nn.Conv2d(8, 16, 3, 2, 1), (2, 8, 9, 9), ["im2col", "matmul"]),
        (nn.Conv1d(8, 16, 3), (2, 8, 9), ["im2col", "matmul"]),
        (nn.Conv2d(8, 8, 3, groups=8), (2, 8, 9, 9), []),
    ],
)
def test_convolutions_are_matmuls(
    model: nn.Module, shape: Sequence[int], expected: list[str]
) -> None:
    assert kernels_of(model.half(), torch.randn(shape).half()) == expected


def gelu_and_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return residual + F.gelu(F.linear(x, weight, bias))


def gated(x: Tensor, gate: Tensor, up: Tensor, scale: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up) * scale


def read_twice(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    product = x @ weight
    return F.relu(product), product.sum(-1)


ROWS_AND_MATRIX = torch.randn(2, 20, 64), torch.randn(64, 48)
EPILOGUES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "residual": (
        gelu_and_residual,
        (ROWS_AND_MATRIX[0], torch.randn(48, 64), torch.randn(48), torch.randn(2, 20, 48)),
    ),
    "gate": (gated, (*ROWS_AND_MATRIX, torch.randn(64, 48), torch.randn(48))),
    "row of a batch": (
        lambda x, w, b: torch.bmm(x, w.expand(2, 64, 48)) + b,
        (*ROWS_AND_MATRIX, torch.randn(48)),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_matmul_is_in_its_kernel(name: str, dtype: torch.dtype) -> None:
    function, args = EPILOGUES[name]
    args = tuple(x.to(dtype) for x in args)
    program = placed(exported(Fn(function), *args), GPU)
    assert not [node for node in program.graph.graph.nodes if is_pointwise(node.target)]
    (result,) = program.graph(*args)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(result, function(*args), atol=tolerance, rtol=tolerance)


def test_a_product_that_is_read_elsewhere_is_stored() -> None:
    program = placed(exported(Fn(read_twice), *ROWS_AND_MATRIX), GPU)
    assert count(program, aten.relu.default) == 1


@programs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_target_gets_windows_of_one_element_with_a_stride(dtype: torch.dtype) -> None:
    model, x = nn.Conv2d(8, 16, 1, (1, 3)).to(dtype).eval(), torch.randn(2, 8, 9, 10).to(dtype)
    output = turbine.aot.export(model, args=(x,))
    (node,) = output.program.graph.graph.find_nodes(
        op="call_function", target=aten.convolution.default
    )
    assert node.args[3] == [1, 1]
    result = output.compile()(x)
    torch.testing.assert_close(result, model(x).detach())
    assert result.stride() == model(x).stride()


def test_gpus_without_kernels_get_none() -> None:
    program = exported(nn.Linear(64, 64), torch.randn(64, 64))
    for chip in ("cuda:sm_75", "cuda:ampere", "vulkan", "hip:gfx942"):
        assert placed(program, target.parse(chip)) is program


def test_a_program_without_triton_is_compiled_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = exported(nn.Linear(64, 64), torch.randn(64, 64))
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr("turbine.library.placement.find_spec", lambda name: None)
    with pytest.warns(errors.SlowCodeWarning, match=r"pip install turbine\[cuda\]"):
        assert placed(program, GPU) is program


def test_checks_of_indices_are_kernels() -> None:
    model = nn.Embedding(10, 16)
    program = placed(exported(model, torch.zeros(2, 5).long()), GPU)
    assert count(program, all_hold.op.op) == 1
    assert count(program, aten.all.default) == 0


def test_checks_of_indices_are_last() -> None:
    def looked_up(x: Tensor, weight: Tensor, limit: Tensor) -> Tensor:
        torch._assert_async(limit > 0, "a limit")
        return F.embedding(x, weight) + 1

    args = torch.zeros(2, 5).long(), torch.randn(10, 16), torch.ones(())
    program = placed(exported(Fn(looked_up), *args), GPU)
    *_, sum_of, last, _ = program.graph.graph.nodes
    (first, _) = program.graph.graph.find_nodes(op="call_function", target=aten._assert_async.msg)
    assert last.target is aten._assert_async.msg
    assert sum_of.target is not aten._assert_async.msg
    assert first.args[1] == "a limit"


# The kernels themselves, on the CPU


@pytest.mark.parametrize("size", [1, 4096, 5000])
def test_one_false_element_is_found(size: int) -> None:
    x = torch.ones(size, dtype=torch.bool)
    assert all_hold.interpret(x).item()
    x[size - 1] = False
    assert not all_hold.interpret(x).item()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_matmuls_match_pytorch(transposed: tuple[bool, bool]) -> None:
    form = Form(transposed, 16, 32, 32)
    x, y, bias = torch.randn(33, 70), torch.randn(70, 45), torch.randn(45)
    one, other = (
        t.T.contiguous() if turned else t for t, turned in zip((x, y), transposed, strict=True)
    )
    product = x.double() @ y.double()
    several = [torch.stack([t, -2 * t]) for t in (one, other)]
    for result, expected in (
        (gpu_matmul.plain(form).interpret(one, other), product),
        (gpu_matmul.plain(form, has_bias=True).interpret(one, other, bias), product + bias),
        (gpu_matmul.batched(form).interpret(*several), torch.stack([product, 4 * product])),
    ):
        torch.testing.assert_close(result, expected.float(), atol=5e-5, rtol=1e-5)


def test_blocks_give_each_processor_a_program() -> None:
    plain = (False, False)
    large = choose_form(plain, torch.float16, 1, 8192, 8192)
    assert (large.rows, large.columns) == (128, 256)
    for size in (1, 100, 1024):
        form = choose_form(plain, torch.float16, 1, size, 1024)
        assert form.rows <= max(16, size)
    assert choose_form(plain, torch.float32, 1, 8192, 8192).columns == 64
    # 144 programs would take as long as 264.
    assert choose_form(plain, torch.float16, 1, 1024, 2304).rows == 64


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [(1, 2, 0, 1, 1), (1, 1, 0, 1, 1), (3, 2, 1, 1, 1), (3, 1, 2, 2, 2), (3, 1, 1, 1, 8)],
)
def test_convolutions_as_matmuls_match_pytorch(
    kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    x, weight = torch.randn(2, 8, 9, 10), torch.randn(16, 8 // groups, kernel, kernel)
    weight = weight[:8] if groups == 8 else weight
    bias = torch.randn(weight.shape[0])
    axes = [(n, n) for n in (stride, padding, dilation)]
    result = as_matmul(x, weight, bias, axes[0], axes[1], axes[2], groups)
    expected = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def test_a_number_that_is_computed_is_no_operand_of_a_matmul() -> None:
    model = Fn(lambda x, y: (x @ y) * x.sum().sqrt())
    assert "matmul" in kernels_of(model, torch.ones(64, 64), torch.ones(64, 64))
