"""Formulas between matmuls, and those that elements share, run in loops of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine
from turbine.capture.crossed_reads import UNFUSED
from turbine.capture.passes import prepare

programs = pytest.mark.sweep(2, "programs")

aten = torch.ops.aten


class Block(nn.Module):
    """Two matmuls with an activation between them."""

    def __init__(self, activation: Callable[[Tensor], Tensor], hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(16, hidden)
        self.second = nn.Linear(hidden, 8)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.activation(self.first(x)))
        return result


def marked(model: nn.Module, *args: Tensor) -> list[object]:
    program = turbine.aot.export(model, args=args).program
    prepare(program.graph, program.inputs)
    return [node.target for node in program.graph.graph.nodes if UNFUSED in node.meta]


@programs
@pytest.mark.parametrize(
    ("activation", "last"),
    [(F.gelu, aten.mul.Tensor), (F.silu, aten.mul.Tensor), (torch.tanh, aten.tanh.default)],
    ids=["gelu", "silu", "tanh"],
)
def test_a_formula_is_apart_from_both_matmuls(
    activation: Callable[[Tensor], Tensor], last: object
) -> None:
    model, x = Block(activation, hidden=512), torch.randn(128, 16)
    assert marked(model, x) == [aten.addmm.default, last]


@programs
def test_cheap_and_small_loops_are_fused_with_matmuls() -> None:
    assert marked(Block(F.relu, hidden=512), torch.randn(128, 16)) == []
    assert marked(Block(F.gelu, hidden=512), torch.randn(2, 16)) == []


class Correction(nn.Module):
    """A number that all elements share, as in a step of Adam."""

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        return x / (1 - 0.9**step)


@programs
def test_a_formula_that_elements_share_is_computed_once() -> None:
    step = torch.tensor(3.0)
    assert marked(Correction(), torch.ones(64, 1024), step) == [aten.rsub.Scalar]
    assert marked(Correction(), torch.ones(64), step) == []
    assert marked(Correction(), torch.ones(64, 1024), torch.ones(64, 1024)) == []


@programs
def test_the_answer_is_the_same() -> None:
    model, x = Block(F.gelu, hidden=512).eval(), torch.randn(70, 16)
    artifact = turbine.aot.export(model, args=(x,)).compile()
    torch.testing.assert_close(artifact(x), model(x).detach())
