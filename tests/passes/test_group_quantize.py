"""Group quantization of linear layers."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import turbine
from tests.passes.modules import LINEAR, TWO, Layers, X, parse, refusal
from turbine.aot import AbstractTensor, CompiledModule, ExportOutput, export_parameters, jittable
from turbine.packed_weights import Grouping, quantize
from turbine.passes import GroupQuantize, run_passes


def pack(weight: Tensor, bits: int, group_size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    array = weight.detach().numpy()
    outputs, columns = weight.shape
    return quantize(array, Grouping.fit(outputs, columns, bits, group_size), array.dtype)


def rounded(weight: Tensor, bits: int, group_size: int) -> Tensor:
    """What a weight is after it has been packed: read as the note on the format says."""
    rows, columns = weight.shape
    packed, scales = pack(weight, bits, group_size)
    q = packed if bits == 8 else numpy.concatenate([(packed << 4) >> 4, packed >> 4], axis=2)
    floats = q.astype(scales.dtype) * scales[:, :, None]
    return torch.from_numpy(floats.reshape(rows, -1)[:, :columns])


def with_rounded_weights(layers: Layers, bits: int, group_size: int) -> Layers:
    other = copy.deepcopy(layers)
    with torch.no_grad():
        for weight in (other.first.weight, other.second.weight):
            weight.copy_(rounded(weight, bits, group_size))
        for weight in (other.plain, other.shared):
            weight.copy_(rounded(weight.T, bits, group_size).T)
    return other


@pytest.mark.run
@pytest.mark.sweep(1)
@pytest.mark.parametrize(("weights", "bits"), [("external", 4), ("external", 8), ("global", 4)])
def test_quantized_layers_compute_with_rounded_weights(
    layers: Layers, weights: str, bits: int
) -> None:
    output = turbine.aot.export(layers, args=(X,), weights=weights)
    quantized = output.transform(GroupQuantize(bits, 16))
    assert quantized.text().count("flow.tensor.bitcast") == (4 if bits == 4 else 0)
    assert quantized.text().count("arith.extsi") == 4
    torch.testing.assert_close(quantized.compile()(X), with_rounded_weights(layers, bits, 16)(X))


def test_packed_weights_are_small(exported: ExportOutput) -> None:
    quantized = exported.transform(GroupQuantize(4, 16))
    plain, packed = (
        {w.name: w.tensor.nbytes for w in output.lowered.external}
        for output in (exported, quantized)
    )
    assert plain["second.weight"] == 16 * 48 * 4
    assert packed["second.weight.packed"] == 16 * 48 // 2
    assert packed["second.weight.scales"] == 16 * 3 * 4
    assert "second.weight" not in packed
    assert packed["first.bias"] == plain["first.bias"]


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16, numpy.float64])
def test_rounding_errors_are_at_most_half_a_step_and_zero_is_exact(dtype: Any) -> None:
    weight = torch.from_numpy(numpy.random.default_rng(0).normal(size=(3, 37)).astype(dtype))
    weight[0, :16] = 0
    weight[1, 4] = 0
    near = rounded(weight, 4, 16)
    _, scales = pack(weight, 4, 16)
    step = torch.from_numpy(numpy.repeat(numpy.abs(scales), 16, axis=1)[:, :37])
    # Half a step; more at the ends, which may lie beyond the integers: 9.5 becomes 7.
    assert ((near - weight).abs() <= 2.51 * step).all()
    assert ((near - weight).abs() <= 0.51 * step).float().mean() > 0.9
    assert (near[0, :16] == 0).all()
    assert near[1, 4] == 0


@pytest.mark.parametrize(("bits", "size"), [(4, 8), (8, 7)])
def test_a_row_shorter_than_a_group_is_one_group(bits: int, size: int) -> None:
    packed, scales = pack(torch.ones(2, 7), bits, 128)
    assert packed.shape == (2, 1, size * bits // 8)
    assert scales.shape == (2, 1)


def test_a_weight_that_is_also_an_embedding_is_kept(layers: Layers) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 16)
            self.inner = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(self.table(x)) @ self.table.weight.T
            return y

    output = turbine.aot.export(Tied().eval(), args=(torch.arange(3),))
    names = [w.name for w in output.transform(GroupQuantize(4, 16)).lowered.external]
    assert "table.weight" in names
    assert "inner.weight.packed" in names


def test_linear_ops_are_quantized_along_their_inputs() -> None:
    module = run_passes(parse(LINEAR), [GroupQuantize(8, 16)])
    assert '"w.scales"> : tensor<8x2xf32>' in str(module)


LAYER = nn.Linear(40, 6)


class Passing(CompiledModule):
    """Weights that one function reads and another multiplies with."""

    params = export_parameters(LAYER)

    def main(self, x=AbstractTensor(None, 40)):  # type: ignore[no-untyped-def]
        return self.compute(x, self.params)

    @jittable
    def compute(x: Tensor, params: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(LAYER, params, (x,))


@pytest.mark.run
def test_weights_are_followed_into_the_functions_they_are_passed_to() -> None:
    quantized = turbine.aot.export(Passing).transform(GroupQuantize(4, 16))
    names = {w.name for w in quantized.lowered.external}
    assert names == {"params.weight.packed", "params.weight.scales", "params.bias"}
    weight, x = rounded(LAYER.weight, 4, 16), torch.randn(3, 40)
    torch.testing.assert_close(quantized.compile()(x), x @ weight.T + LAYER.bias.detach())


CALLS = """
func.func private @f(%w: tensor<8x32xf32>, %x: !torch.vtensor<[2,32],f32>) {
  %none = torch.constant.none
  %0 = torch_c.from_builtin_tensor %w : tensor<8x32xf32> -> !torch.vtensor<[8,32],f32>
  %1 = torch.aten.linear %x, %0, %none
      : !torch.vtensor<[2,32],f32>, !torch.vtensor<[8,32],f32>, !torch.none
      -> !torch.vtensor<[2,8],f32>
  call @f(%w, %x) : (tensor<8x32xf32>, !torch.vtensor<[2,32],f32>) -> ()
  return
}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x32xf32>
func.func @main(%x: !torch.vtensor<[2,32],f32>) {
  %0 = util.global.load @w : tensor<8x32xf32>
  call @f(%0, %x) : (tensor<8x32xf32>, !torch.vtensor<[2,32],f32>) -> ()
  return
}
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TWO, "no linear layer to quantize"),
        (CALLS, "no linear layer to quantize"),
        (LINEAR.replace("x32x", "x0x").replace(",32]", ",0]"), "no linear layer to quantize"),
        (
            "util.global private @w.packed = dense<0> : tensor<1xi8>" + LINEAR,
            "cannot quantize w: there is a w.packed already",
        ),
        (
            LINEAR.replace('#flow.parameter.named<"model"::"w">', "dense<0x7FC00000>"),
            "cannot quantize w: it contains nan or inf",
        ),
    ],
)
def test_unsupported_weights_are_rejected(text: str, told: str) -> None:
    assert refusal([GroupQuantize()], text).startswith(told)
