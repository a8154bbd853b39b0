"""The generator of a DCGAN: latent vectors to 64x64 images by transposed convolutions."""

import torch
from torch import nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class GrowBlock(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, stride: int, padding: int) -> None:
        super().__init__(
            nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class ImageGenerator(nn.Sequential):
    """A latent vector seen as a 1x1 image grows to 4x4, then doubles `doublings` times."""

    def __init__(self, latent: int, width: int, doublings: int) -> None:
        widths = [width << level for level in reversed(range(doublings))]
        super().__init__(
            nn.Unflatten(1, (latent, 1, 1)),
            GrowBlock(latent, widths[0], stride=1, padding=0),
            *(GrowBlock(2 * w, w, stride=2, padding=1) for w in widths[1:]),
            nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
            nn.Tanh(),
        )


def convtranspose(
    *, batch: int = 8, latent: int = 100, width: int = 32, doublings: int = 4
) -> Example:
    noise = torch.randn(batch, latent, generator=generator())
    return Example(build_seeded(lambda: ImageGenerator(latent, width, doublings)), (noise,))
