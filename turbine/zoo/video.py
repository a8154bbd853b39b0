"""A video classifier of 3-D convolutions."""

import torch
from torch import nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class VideoNet(nn.Sequential):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__(
            nn.Conv3d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool3d((1, 2, 2)),
            nn.Conv3d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm3d(2 * width),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(4 * width, classes),
        )


def conv3d(
    *, batch: int = 1, frames: int = 8, size: int = 56, width: int = 16, classes: int = 10
) -> Example:
    clips = torch.randn(batch, 3, frames, size, size, generator=generator())
    return Example(build_seeded(lambda: VideoNet(width, classes)), (clips,))
