"""ViT, a transformer over the patches of an image."""

import torch
from torch import Tensor, nn

from turbine.zoo.attention import PreNormBlock
from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class VisionTransformer(nn.Module):
    def __init__(
        self, size: int, patch: int, dim: int, layers: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(PreNormBlock(dim, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.positions))
        x = self.head(x[:, 0])
        return x


def vit(
    *,
    batch: int = 1,
    size: int = 224,
    patch: int = 16,
    dim: int = 384,
    layers: int = 12,
    heads: int = 6,
    classes: int = 1000,
) -> Example:
    images = torch.randn(batch, 3, size, size, generator=generator())
    model = build_seeded(lambda: VisionTransformer(size, patch, dim, layers, heads, classes))
    return Example(model, (images,))
