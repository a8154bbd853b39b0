"""IR and models shared by tests of passes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from turbine import errors
from turbine.mlir import context
from turbine.mlir.ir import Module
from turbine.passes import Pass, run_passes


@torch.library.custom_op("turbine_passes::scaled", mutates_args=())
def scaled(x: Tensor, factor: int) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: int) -> Tensor:
    return torch.empty_like(x)


class Layers(nn.Module):
    """Every form of linear layer: with and without bias, transposed or not, broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 48)
        self.second = nn.Linear(48, 16, bias=False)
        self.plain = nn.Parameter(torch.randn(16, 24))
        self.shared = nn.Parameter(torch.randn(24, 8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(x))) @ self.plain
        return torch.bmm(y, self.shared.expand(2, 24, 8))


X = torch.linspace(-1, 1, 2 * 5 * 40).reshape(2, 5, 40)


TWO = """
util.global private @a = #flow.parameter.named<"model"::"a"> : tensor<4xf32>
util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<4xf32>
func.func private @helper() { return }
func.func @main() -> tensor<4xf32> {
  %0 = util.global.load @a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def parse(text: str = TWO) -> Module:
    return context.parse(text)


def refusal(passes: Sequence[Pass], text: str = TWO) -> str:
    """The error message; the module must be unchanged."""
    module = parse(text)
    before = str(module)
    with pytest.raises(errors.TransformError) as caught:
        run_passes(module, passes)
    assert str(module) == before
    return str(caught.value)


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = scaled(scaled(x, 3), 5) + 1
        return y


LIBRARY = """
util.global private @table = dense<2.0> : tensor<f32>
func.func private @twice(%n: i64) -> f32 {
  %table = util.global.load @table : tensor<f32>
  %two = tensor.extract %table[] : tensor<f32>
  %f = arith.sitofp %n : i64 to f32
  %g = arith.mulf %f, %two : f32
  return %g : f32
}
func.func @turbine_passes.scaled(%x: tensor<3x?xf32>, %n: i64) -> tensor<3x?xf32> {
  %c1 = arith.constant 1 : index
  %f = func.call @twice(%n) : (i64) -> f32
  %size = tensor.dim %x, %c1 : tensor<3x?xf32>
  %empty = tensor.empty(%size) : tensor<3x?xf32>
  %all = linalg.fill ins(%f : f32) outs(%empty : tensor<3x?xf32>) -> tensor<3x?xf32>
  %y = arith.mulf %x, %all : tensor<3x?xf32>
  return %y : tensor<3x?xf32>
}
"""


LINEAR = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x32xf32>
func.func @main(%x: !torch.vtensor<[?,32],f32>) -> !torch.vtensor<[?,8],f32> {
  %none = torch.constant.none
  %0 = util.global.load @w : tensor<8x32xf32>
  %1 = torch_c.from_builtin_tensor %0 : tensor<8x32xf32> -> !torch.vtensor<[8,32],f32>
  %2 = torch.aten.linear %x, %1, %none
      : !torch.vtensor<[?,32],f32>, !torch.vtensor<[8,32],f32>, !torch.none
      -> !torch.vtensor<[?,8],f32>
  return %2 : !torch.vtensor<[?,8],f32>
}
"""
