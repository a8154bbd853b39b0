"""ResNet-18, the residual image classifier of He et al., 2015."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turbine.zoo.example import Example
from turbine.zoo.seeding import generator, seeded


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


class ResNet18(nn.Sequential):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            BasicBlock(width, width, stride=1),
            BasicBlock(width, width, stride=1),
            BasicBlock(width, 2 * width, stride=2),
            BasicBlock(2 * width, 2 * width, stride=1),
            BasicBlock(2 * width, 4 * width, stride=2),
            BasicBlock(4 * width, 4 * width, stride=1),
            BasicBlock(4 * width, 8 * width, stride=2),
            BasicBlock(8 * width, 8 * width, stride=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, classes),
        )


def resnet18(*, batch: int = 1, size: int = 224, width: int = 64, classes: int = 1000) -> Example:
    images = torch.randn(batch, 3, size, size, generator=generator())
    return Example(seeded(lambda: ResNet18(width, classes)), (images,))
