"""What follows a convolution is part of its kernel, with the numbers of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine
from tests.library.placing import AVX512, count, exported, placed
from turbine.capture.program import Program

programs = pytest.mark.sweep(1, "programs")

aten = torch.ops.aten
ENDS = aten.relu.default, aten.where.self, aten.mul.Tensor, aten.add.Tensor


class Norm(nn.Module):
    """A convolution, batch norm with its own statistics, and what follows."""

    def __init__(self, follow: Callable[[Tensor, Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 1)
        self.follow = follow
        for statistic in (self.norm.running_mean, self.norm.running_var):
            assert statistic is not None
            nn.init.uniform_(statistic, 0.5, 2)
        nn.init.uniform_(self.norm.weight, -1)
        nn.init.normal_(self.norm.bias)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.follow(self.norm(self.first(x)), self.second(x))


TAILS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda x, _: F.relu(x),
    "relu6": lambda x, _: F.relu6(x),
    "from above": lambda x, _: x.clamp(max=0.5),
    "residual": lambda x, y: x + y,
    "residual, then relu": lambda x, y: F.relu(y + x),
    "bound twice": lambda x, _: F.relu(F.relu(x).clamp(max=1.0)),
    "relu, then residual": lambda x, y: F.relu(x) + y,
    "used twice": lambda x, y: F.relu(x + y) + x,
    "residuals of a sum": lambda x, y: F.relu(x + y + y),
    "itself": lambda x, _: x + x,
    "a number": lambda x, _: x * 2.0 + 1.0,
}


def max_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


def ends(program: Program) -> int:
    """How many ops that a tail may have use images."""
    nodes = [
        node
        for op in ENDS
        for node in program.graph.graph.find_nodes(op="call_function", target=op)
    ]
    return sum(node.meta["val"].shape[-2:] == (9, 7) for node in nodes)


@programs
@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("bias", [False, True])
def test_tails_match_eager(name: str, bias: bool) -> None:
    model, x = Norm(TAILS[name], bias=bias), torch.randn(2, 16, 9, 7)
    found = turbine.aot.export(model, args=(x,)).compile()(x)
    assert max_error(found, model(x)) < 1e-5


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("relu", 0),
        ("relu6", 0),
        ("from above", 0),
        ("residual, then relu", 0),
        ("relu, then residual", 0),
        ("used twice", 1),
    ],
)
def test_no_op_is_left_of_a_tail(name: str, left: int) -> None:
    program = exported(Norm(TAILS[name]), torch.randn(2, 16, 9, 7))
    assert ends(program) > left
    assert ends(placed(program, AVX512)) == left


@programs
def test_bounds_keep_nan_and_infinity() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU6()).eval()
    x = torch.randn(1, 16, 3, 3)
    x[0, 0, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    found = turbine.aot.export(model, args=(x,)).compile()(x)
    torch.testing.assert_close(found, model(x).detach(), equal_nan=True)


class Downsampled(nn.Module):
    """The sum of two convolutions, of which either could add the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.one(x) + self.other(x))


@programs
def test_a_sum_belongs_to_one_convolution() -> None:
    model, x = Downsampled().eval(), torch.randn(1, 16, 9, 7)
    program = placed(exported(model, x), AVX512)
    assert ends(program) == 0
    kernels = [n for n in program.graph.graph.nodes if "tk.convolution" in str(n.target)]
    assert sorted(len(node.args) for node in kernels) == [3, 4]
    found = turbine.aot.export(model, args=(x,)).compile()(x)
    assert max_error(found, model(x)) < 1e-5


@programs
def test_sequences_and_depthwise_convolutions_have_tails() -> None:
    model = nn.Sequential(
        nn.Conv1d(16, 16, 3, padding=1, groups=16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 8, 3),
    ).eval()
    x = torch.randn(2, 16, 20)
    assert count(placed(exported(model, x), AVX512), aten.relu.default) == 0
    found = turbine.aot.export(model, args=(x,)).compile()(x)
    assert max_error(found, model(x)) < 1e-5
