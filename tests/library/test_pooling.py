"""Pooling kernels: which ops they replace, and that they match PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import turbine
from tests.library.placing import NEON, exported, placed
from turbine.capture.program import Program

programs = pytest.mark.sweep(1, "programs")

POOLS: dict[str, nn.Module] = {
    "max": nn.MaxPool2d(2),
    "max with padding": nn.MaxPool2d(3, stride=2, padding=1),
    "max of unequal sides": nn.MaxPool2d((2, 3), stride=(1, 2), padding=(1, 0)),
    "max with ceil_mode": nn.MaxPool2d(3, stride=2, ceil_mode=True),
    "average": nn.AvgPool2d(2),
    "average with padding": nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    "average by another number": nn.AvgPool2d(3, stride=1, divisor_override=5),
    "average with ceil_mode": nn.AvgPool2d(3, stride=2, ceil_mode=True),
}


def pools(program: Program) -> int:
    return sum("tk.pooling" in str(node.target) for node in program.graph.graph.nodes)


@programs
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("size", [(9, 7), (8, 12)])
def test_artifacts_with_kernels_match_eager(name: str, size: tuple[int, int]) -> None:
    model = nn.Sequential(nn.Conv2d(8, 17, 3, padding=1), nn.ReLU(), POOLS[name]).eval()
    x = torch.randn(2, 8, *size)
    output = turbine.aot.export(model, args=(x,))
    assert pools(placed(output.program)) == 1
    torch.testing.assert_close(output.compile()(x), model(x).detach())


@programs
def test_a_dynamic_batch_and_sequences_have_kernels() -> None:
    model = nn.Sequential(nn.Conv1d(8, 16, 3), nn.SiLU(), nn.MaxPool1d(2), nn.AvgPool1d(3)).eval()
    output = turbine.aot.export(
        model, args=(torch.randn(3, 8, 30),), dynamic_shapes=({0: Dim("batch", max=64)},)
    )
    assert pools(placed(output.program)) == 2
    artifact = output.compile()
    for batch in (1, 5):
        x = torch.randn(batch, 8, 30)
        torch.testing.assert_close(artifact(x), model(x).detach())


@programs
def test_maxima_keep_nan_and_infinity() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 1), nn.MaxPool2d(3, 2, 1)).eval()
    x = torch.randn(1, 16, 8, 8)
    x[0, 0, 0, 0], x[0, 0, 6:] = torch.nan, -torch.inf
    found = turbine.aot.export(model, args=(x,)).compile()(x)
    torch.testing.assert_close(found, model(x).detach(), equal_nan=True)


@programs
def test_indices_match_eager() -> None:
    class Indexed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(8, 16, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.max_pool2d(self.convolution(x), 2, return_indices=True)

    model, x = Indexed().eval(), torch.randn(1, 8, 9, 9)
    found = turbine.aot.export(model, args=(x,)).compile()(x)
    for one, other in zip(found, model(x), strict=True):
        torch.testing.assert_close(one, other.detach())


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "model",
    [
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(8, 6, 3), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(8, 16, 3), nn.MaxPool2d(2, dilation=2)),
        nn.Sequential(nn.Conv2d(8, 16, 1), nn.MaxPool2d(5)),
    ],
    ids=["no convolution", "few channels", "dilation", "large windows"],
)
def test_other_pooling_has_none(model: nn.Module) -> None:
    assert pools(placed(exported(model, torch.randn(1, 8, 12, 12)), NEON)) == 0
