"""torch.compile with frozen weights: packed once, and again after a write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine.dynamo.entry import backend
from turbine.runtime import parameters

programs = pytest.mark.sweep(1, "programs")

frozen = partial(backend, options={"freezing": True})


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    torch.compiler.reset()
    with torch.no_grad():
        yield


class Network(nn.Module):
    """Weights of a convolution, of products, and in views."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Linear(8, 64)
        self.head = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.convolution(x))).mean((2, 3))
        logits: Tensor = self.head(torch.tanh(self.inner(x)))
        return logits


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights were loaded, each time."""
    counts: list[int] = []
    load = parameters.from_memory

    def count(scope: str, entries: Any) -> Any:
        counts.append(len(entries))
        return load(scope, entries)

    monkeypatch.setattr(parameters, "from_memory", count)
    return counts


@programs
def test_weights_are_loaded_once(loads: list[int]) -> None:
    model, x = Network().eval(), torch.randn(9, 3, 12, 12)
    compiled = torch.compile(model, backend=frozen)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
    assert loads == [10]  # parameters, and the running mean and variance


def add_in_place(model: nn.Linear) -> None:
    model.weight.add_(1)


def load_others(model: nn.Linear) -> None:
    model.load_state_dict(nn.Linear(32, 32).state_dict())


def set_data(model: nn.Linear) -> None:
    model.weight.data = torch.ones(32, 32)


def set_parameter(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.ones(32, 32))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("change", [add_in_place, load_others, set_data, set_parameter])
def test_changed_weights_are_loaded_again(
    change: Callable[[nn.Linear], None], loads: list[int]
) -> None:
    model, x = nn.Linear(32, 32), torch.randn(9, 32)
    compiled = torch.compile(model, backend=frozen)
    compiled(x)
    for _ in range(3):
        change(model)
        torch.testing.assert_close(compiled(x), model(x))
    assert 2 <= len(loads) <= 4


@programs
def test_weights_that_are_views_at_odd_addresses_are_loaded() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd: Tensor
            self.turned: Tensor
            flat = torch.randn(2 * 33 * 33 + 1)
            self.register_buffer("odd", flat[1 : 1 + 33 * 33].view(33, 33))
            self.register_buffer("turned", flat[-33 * 33 :].view(33, 33).t())

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.odd + x @ self.turned

    model, x = Views(), torch.randn(9, 33)
    torch.testing.assert_close(torch.compile(model, backend=frozen)(x), model(x))


def test_weights_made_in_inference_mode_are_loaded() -> None:
    with torch.inference_mode():
        model, x = nn.Linear(32, 32), torch.randn(9, 32)
        torch.testing.assert_close(torch.compile(model, backend=frozen)(x), model(x))


@programs
def test_buffers_that_a_call_writes_are_not_frozen(loads: list[int]) -> None:
    model, other = Network(), Network()
    other.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=frozen)
    for _ in range(3):
        x = torch.randn(9, 3, 12, 12)
        torch.testing.assert_close(compiled(x), other(x))
    torch.testing.assert_close(model.norm.running_mean, other.norm.running_mean)
    assert len(loads) == 1


@programs
def test_graphs_with_gradients_are_not_frozen(loads: list[int]) -> None:
    model, x = nn.Linear(32, 32), torch.randn(9, 32)
    with torch.enable_grad():
        torch.compile(model, backend=frozen)(x).sum().backward()
    assert model.weight.grad is not None
    assert loads == []


def test_reports_name_kernels() -> None:
    model, x = Network().eval(), torch.randn(9, 3, 12, 12)
    with turbine.config.override(freezing=True):
        report = turbine.explain(model, x)
    (part,) = report.graphs[0].parts
    assert part.kernels["convolution"] == 1
    assert "convolution 1" in str(report)


def test_profiles_have_frozen_parts() -> None:
    model, x = Network().eval(), torch.randn(9, 3, 12, 12)
    with turbine.config.override(freezing=True):
        report = turbine.profile(model, x, calls=2)
    (part,) = report.parts
    assert any("convolution" in dispatch.name for dispatch in part.dispatches)


@programs
def test_results_share_no_memory_with_weights() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 32))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            turned = self.weight.t().contiguous()
            return torch.tanh(x @ self.weight) + 1, self.weight.clone(), turned, self.weight * 1

    model, x = Returning(), torch.randn(9, 32)
    compiled = torch.compile(model, backend=frozen)
    before = model.weight.clone()
    for _ in range(2):
        for result, expected in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(result, expected)
            result.zero_()
        torch.testing.assert_close(model.weight, before)
