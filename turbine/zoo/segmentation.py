"""U-Net, an encoder and a decoder of images joined by skip connections."""

import torch
from torch import Tensor, nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class UNet(nn.Module):
    """`depth` halvings of the image, each doubling the channels, and as many doublings back."""

    def __init__(self, width: int, depth: int, classes: int, upsample: str) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.stem = DoubleConv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.Upsample(scale_factor=2, mode=upsample)
        self.down = nn.ModuleList(DoubleConv(w, 2 * w) for w in widths[:-1])
        self.up = nn.ModuleList(DoubleConv(3 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips: list[Tensor] = []
        for down in self.down:
            skips.append(x)
            x = down(self.pool(x))
        for up in self.up:
            x = up(torch.cat([skips.pop(), self.grow(x)], dim=1))
        x = self.head(x)
        return x


def unet(
    *,
    batch: int = 1,
    size: int = 128,
    width: int = 32,
    depth: int = 3,
    classes: int = 2,
    upsample: str = "bilinear",
) -> Example:
    """`upsample` is a mode of `nn.Upsample`, such as "nearest"; `size` a multiple of 2**depth."""
    images = torch.randn(batch, 3, size, size, generator=generator())
    return Example(build_seeded(lambda: UNet(width, depth, classes, upsample)), (images,))
