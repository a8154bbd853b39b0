"""The denoiser of latent diffusion: a U-Net whose levels attend to the text."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class ResidualBlock(nn.Module):
    """Two convolutions; the time is added between them."""

    def __init__(self, inputs: int, outputs: int, time: int, groups: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(groups, inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.second_norm = nn.GroupNorm(groups, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(F.silu(self.first_norm(x))) + self.time(F.silu(time))[:, :, None, None]
        y = self.second(F.silu(self.second_norm(y)))
        x = y + self.shortcut(x)
        return x


class Attention(nn.Module):
    """Positions attend to those of a context: the image itself, or the text."""

    def __init__(self, dim: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(context, dim, bias=False)
        self.value = nn.Linear(context, dim, bias=False)
        self.project = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        rows = self.query(x), self.key(context), self.value(context)
        heads = [row.unflatten(-1, (self.heads, -1)).transpose(1, 2) for row in rows]
        attended = F.scaled_dot_product_attention(*heads)
        projected: Tensor = self.project(attended.transpose(1, 2).flatten(2))
        return projected


class TextBlock(nn.Module):
    """Attention within the image, attention to the text and a gated layer."""

    def __init__(self, dim: int, text: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.image = Attention(dim, dim, heads)
        self.text = Attention(dim, text, heads)
        self.gate = nn.Linear(dim, 8 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        rows = self.norm(x).flatten(2).transpose(1, 2)
        y = self.norms[0](rows)
        rows = rows + self.image(y, y)
        rows = rows + self.text(self.norms[1](rows), text)
        y, gate = self.gate(self.norms[2](rows)).chunk(2, dim=-1)
        rows = rows + self.down(y * F.gelu(gate))
        x = x + rows.transpose(1, 2).unflatten(-1, x.shape[2:])
        return x


class Level(nn.Module):
    """A residual block and attention to the text, at one size of the image."""

    def __init__(self, inputs: int, outputs: int, text: int, time: int, heads: int) -> None:
        super().__init__()
        groups = min(32, outputs // 4)
        self.block = ResidualBlock(inputs, outputs, time, groups)
        self.attend = TextBlock(outputs, text, heads, groups)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        found: Tensor = self.attend(self.block(x, time), text)
        return found


class LatentUNet(nn.Module):
    """Predict the noise in a latent image, given the step in time and the encoded text."""

    frequencies: Tensor

    def __init__(self, channels: int, width: int, depth: int, text: int, heads: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        time = 4 * width
        half = width // 2
        frequencies = 10000.0 ** -(torch.arange(half) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(Level(w, w, text, time, heads) for w, _ in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(w, v, 3, stride=2, padding=1) for w, v in pairs)
        self.middle = Level(widths[-1], widths[-1], text, time, heads)
        self.up = nn.ModuleList(Level(v + w, w, text, time, heads) for w, v in reversed(pairs))
        self.norm = nn.GroupNorm(min(32, width // 4), width)
        self.head = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor, text: Tensor) -> Tensor:
        angles = step[:, None] * self.frequencies
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=1))
        x = self.stem(x)
        skips: list[Tensor] = []
        for level, shrink in zip(self.down, self.shrink, strict=True):
            skips.append(level(x, time, text))
            x = shrink(skips[-1])
        x = self.middle(x, time, text)
        for level in self.up:
            grown = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = level(torch.cat([grown, skips.pop()], dim=1), time, text)
        noise: Tensor = self.head(F.silu(self.norm(x)))
        return noise


def latent_unet(
    *,
    batch: int = 2,
    size: int = 32,
    width: int = 128,
    depth: int = 2,
    text: int = 768,
    length: int = 77,
    heads: int = 8,
) -> Example:
    """A step with guidance: a batch of two, with and without the text."""
    random = generator()
    x = torch.randn(batch, 4, size, size, generator=random)
    step = torch.full((batch,), 500.0)
    context = torch.randn(batch, length, text, generator=random)
    model = build_seeded(lambda: LatentUNet(4, width, depth, text, heads))
    return Example(model, (x, step, context))
