"""Dispatches with long formulas have wide vectors, and results as before."""

from __future__ import annotations

import re

import pytest
import torch
from iree.compiler.ir import Operation
from torch import Tensor

import turbine
from tests.models import Fn
from turbine.compiler import session
from turbine.mlir import context, wide_loops
from turbine.mlir.matchers import walk
from turbine.target import parse


def chain(length: int) -> str:
    """A formula of so many ops, that gives %0 to %length."""
    steps = [f"%{n + 1} = math.fma %{n}, %x, %x : f32" for n in range(length)]
    return "\n".join(["%0 = math.exp %x : f32", *steps])


def loop(length: int, place: str = "i, j") -> str:
    """A loop with a formula; its result is written at a place."""
    return f"""
func.func @f(%input: tensor<64x64xf32>) -> tensor<64x64xf32> {{
  %room = tensor.empty() : tensor<64x64xf32>
  %result = linalg.generic {{
    indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ({place})>],
    iterator_types = ["parallel", "parallel"]
  }} ins(%input : tensor<64x64xf32>) outs(%room : tensor<64x64xf32>) {{
  ^bb0(%x: f32, %out: f32):
    {chain(length)}
    linalg.yield %{length} : f32
  }} -> tensor<64x64xf32>
  return %result : tensor<64x64xf32>
}}"""


@pytest.mark.parametrize(
    ("source", "factor"),
    [
        (loop(20), 4),
        (loop(3), 1),
        (loop(20, "j, i"), 1),
    ],
    ids=["long", "short", "transposed"],
)
def test_vectors_of_long_formulas_are_wide(source: str, factor: int) -> None:
    flags = parse("cpu:generic").flags
    outcome = session.run(session.Request(source.encode(), flags, until=wide_loops.BEGIN))
    assert outcome.data is not None, outcome.diagnostics
    module = context.parse(outcome.data).operation
    before = width_of_dispatch(module)
    targets = wide_loops.widen_loops(module)
    assert width_of_dispatch(module) == factor * before
    wide_loops.restore_targets(module, targets)
    assert width_of_dispatch(module) == before


def width_of_dispatch(module: Operation) -> int:
    (variant,) = (op for op in walk(module) if op.name == "hal.executable.variant")
    found = re.search(r"native_vector_size = (\d+)", str(variant.attributes["target"]))
    assert found is not None
    return int(found[1])


@pytest.mark.sweep(4)
@pytest.mark.parametrize("shape", [(1,), (5, 7), (3, 64, 65), (1000, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_formulas_of_any_size_match_eager(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def formula(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(torch.tanh(x) + y) * torch.nn.functional.gelu(x - y)

    x, row = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    artifact = turbine.aot.export(Fn(formula), args=(x, row)).compile()
    # A sum near 4 that is rounded to the next bfloat16 moves a sigmoid by that much.
    rtol, atol = (2**-5, 1e-5) if dtype == torch.bfloat16 else (None, None)
    torch.testing.assert_close(artifact(x, row), formula(x, row), rtol=rtol, atol=atol)
