"""Modules called with an empty batch or exported with dynamic dimensions."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.export import Dim

from turbine.zoo.example import Example
from turbine.zoo.perceptron import mlp
from turbine.zoo.seeds import build_seeded, generator


class CoarseAndFine(nn.Module):
    """Add to each coarse step the mean of the two fine steps it covers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        pairs = fine.view(fine.shape[0], coarse.shape[1], 2, fine.shape[2])
        coarse = coarse + self.linear(pairs.mean(dim=2))
        return coarse


def empty_batch() -> Example:
    return mlp(batch=0, features=4, hidden=8)


def dynamic_batch() -> Example:
    batch = Dim("batch", min=1, max=64)
    return replace(mlp(batch=3, features=4, hidden=8), dynamic_shapes=({0: batch},))


def dynamic_sequence() -> Example:
    """The second input is always twice as long as the first."""
    random = generator()
    coarse = torch.randn(2, 5, 4, generator=random)
    fine = torch.randn(2, 10, 4, generator=random)
    length = Dim("length", min=2, max=128)
    shapes = {"coarse": {1: length}, "fine": {1: 2 * length}}
    return Example(build_seeded(CoarseAndFine), (coarse, fine), dynamic_shapes=shapes)
