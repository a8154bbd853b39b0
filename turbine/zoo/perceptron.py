"""The multilayer perceptron."""

import torch
from torch import nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class Perceptron(nn.Sequential):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(
            nn.Linear(features, hidden),
            nn.GELU(),
            nn.Linear(hidden, features),
        )


def mlp(*, batch: int = 128, features: int = 1024, hidden: int = 4096) -> Example:
    x = torch.randn(batch, features, generator=generator())
    return Example(build_seeded(lambda: Perceptron(features, hidden)), (x,))
