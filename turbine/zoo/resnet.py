"""ResNet-18, the residual image classifier of He et al., 2015."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, projected when the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet(nn.Sequential):
    """Stages of blocks, each stage of half the size and twice the width of the one before."""

    def __init__(self, width: int, classes: int, stages: Sequence[int]) -> None:
        super().__init__(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        inputs = width
        for stage, blocks in enumerate(stages):
            outputs = width * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                self.append(BasicBlock(inputs, outputs, stride))
                inputs = outputs
        self.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)])


def resnet18(
    *,
    batch: int = 1,
    size: int = 224,
    width: int = 64,
    classes: int = 1000,
    stages: Sequence[int] = (2, 2, 2, 2),
) -> Example:
    """ResNet-18; `stages` has the blocks of each stage, and fewer make a smaller network."""
    images = torch.randn(batch, 3, size, size, generator=generator())
    return Example(build_seeded(lambda: ResNet(width, classes, stages)), (images,))
