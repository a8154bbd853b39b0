"""Modules over element types other than float32."""

import torch
from torch import Tensor, nn

from turbine.zoo.example import Example
from turbine.zoo.perceptron import Perceptron
from turbine.zoo.seeds import build_seeded, generator


class IntegersAndBooleans(nn.Module):
    """Integers of two widths and a mask to integers of both widths and booleans."""

    def forward(
        self, ids: Tensor, counts: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        chosen = torch.where(mask, ids, -1)
        return chosen, counts * 2 + 1, (ids > 4) & mask, mask.any(dim=1)


class ComplexProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.weight
        return y, torch.view_as_real(y).square().sum(-1)


class NormalizeImage(nn.Module):
    """Bytes of (batch, height, width, channel) to normalized (batch, channel, height, width)."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225])[:, None, None])

    def forward(self, image: Tensor) -> Tensor:
        x = image.permute(0, 3, 1, 2).float() / 255
        return (x - self.mean) / self.std


def integers_and_booleans() -> Example:
    random = generator()
    ids = torch.randint(10, (3, 4), generator=random)
    counts = torch.randint(10, (3,), generator=random, dtype=torch.int32)
    mask = torch.randint(2, (3, 4), generator=random).bool()
    return Example(build_seeded(IntegersAndBooleans), (ids, counts, mask))


def bfloat16() -> Example:
    x = torch.randn(3, 4, generator=generator()).bfloat16()
    return Example(build_seeded(lambda: Perceptron(4, 8)).bfloat16(), (x,))


def float64() -> Example:
    x = torch.randn(3, 4, generator=generator(), dtype=torch.float64)
    return Example(build_seeded(lambda: Perceptron(4, 8)).double(), (x,))


def complex64() -> Example:
    x = torch.randn(3, 4, generator=generator(), dtype=torch.complex64)
    return Example(build_seeded(ComplexProduct), (x,))


def uint8_image() -> Example:
    image = torch.randint(256, (2, 8, 8, 3), generator=generator(), dtype=torch.uint8)
    return Example(build_seeded(NormalizeImage), (image,))
