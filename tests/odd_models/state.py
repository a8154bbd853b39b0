"""Modules whose parameters and buffers are mutated, shared, viewed, returned or not saved."""

import torch
from torch import Tensor, nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class Counter(nn.Module):
    """Add the number of calls so far, this one included."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.first(x)))
        return x


class WeightView(nn.Module):
    """A buffer that shares the storage of the first rows of a weight."""

    head: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("head", self.linear.weight.detach()[:2])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.linear(x), x @ self.head.T], dim=1)


class ReturnsParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.weight, self.weight


class NonPersistentBuffer(nn.Module):
    """A buffer that is absent from the state dict."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def counter() -> Example:
    return Example(build_seeded(Counter), (vectors(),))


def batchnorm_train() -> Example:
    """Normalize by the statistics of the batch and update the running ones."""
    model = build_seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    return Example(model.train(), (vectors(),))


def tied_weights() -> Example:
    return Example(build_seeded(TiedWeights), (vectors(),))


def weight_view() -> Example:
    return Example(build_seeded(WeightView), (vectors(),))


def returns_parameter() -> Example:
    return Example(build_seeded(ReturnsParameter), (vectors(),))


def nonpersistent_buffer() -> Example:
    return Example(build_seeded(NonPersistentBuffer), (vectors(),))


def vectors() -> Tensor:
    return torch.randn(3, 4, generator=generator())
