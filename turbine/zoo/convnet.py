"""Plain image classifiers: LeNet and a stack of convolution blocks."""

import torch
from torch import nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class LeNet(nn.Sequential):
    """LeNet on 28x28 images; `width` is the number of channels of its first convolution."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(
            nn.Conv2d(1, width, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(width, 2 * width, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 5 * 5, 20 * width),
            nn.Tanh(),
            nn.Linear(20 * width, 14 * width),
            nn.Tanh(),
            nn.Linear(14 * width, classes),
        )


class ConvBlock(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )


class ConvNet(nn.Sequential):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__(
            ConvBlock(3, width),
            ConvBlock(width, 2 * width),
            ConvBlock(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(4 * width, classes),
        )


def lenet(*, batch: int = 16, width: int = 6, classes: int = 10) -> Example:
    images = torch.randn(batch, 1, 28, 28, generator=generator())
    return Example(build_seeded(lambda: LeNet(width, classes)), (images,))


def cnn(*, batch: int = 8, size: int = 32, width: int = 32, classes: int = 10) -> Example:
    images = torch.randn(batch, 3, size, size, generator=generator())
    return Example(build_seeded(lambda: ConvNet(width, classes)), (images,))
