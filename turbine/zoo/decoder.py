"""Causal language models: GPT-2 and Llama."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turbine.zoo.attention import PreNormBlock
from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class Gpt2(nn.Module):
    """GPT-2, whose output layer shares the weight of the token embedding."""

    def __init__(self, vocab: int, positions: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(positions, dim)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)
        self.blocks = nn.Sequential(*(PreNormBlock(dim, heads, causal=True) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x: Tensor = self.tokens(ids) + self.positions(positions)
        x = self.lm_head(self.norm(self.blocks(x)))
        return x


class Rope(nn.Module):
    """Rotate each head by angles that grow with the position."""

    inv_freq: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        inv_freq = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        even, odd = x.chunk(2, dim=-1)
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)


class GroupedAttention(nn.Module):
    """Causal attention in which several query heads share one key and value head."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = dim // heads
        self.groups = heads // kv_heads
        self.rope = Rope(self.size)
        self.query = nn.Linear(dim, heads * self.size, bias=False)
        self.key = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.value = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.project = nn.Linear(heads * self.size, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.rope(self.split(self.query(x)))
        k = self.rope(self.split(self.key(x))).repeat_interleave(self.groups, dim=1)
        v = self.split(self.value(x)).repeat_interleave(self.groups, dim=1)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.project(x.transpose(1, 2).flatten(2))
        return x

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)


class LlamaBlock(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = GroupedAttention(dim, heads, kv_heads)
        self.feed_forward_norm = nn.RMSNorm(dim, eps=1e-5)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_forward_norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x


class Llama(nn.Sequential):
    def __init__(
        self, vocab: int, dim: int, hidden: int, layers: int, heads: int, kv_heads: int
    ) -> None:
        super().__init__(
            nn.Embedding(vocab, dim),
            *(LlamaBlock(dim, hidden, heads, kv_heads) for _ in range(layers)),
            nn.RMSNorm(dim, eps=1e-5),
            nn.Linear(dim, vocab, bias=False),
        )


def gpt2(
    *,
    batch: int = 1,
    length: int = 128,
    vocab: int = 8192,
    dim: int = 384,
    layers: int = 6,
    heads: int = 6,
) -> Example:
    ids = torch.randint(vocab, (batch, length), generator=generator())
    return Example(build_seeded(lambda: Gpt2(vocab, 2 * length, dim, layers, heads)), (ids,))


def llama(
    *,
    batch: int = 1,
    length: int = 128,
    vocab: int = 8192,
    dim: int = 384,
    hidden: int = 1024,
    layers: int = 6,
    heads: int = 6,
    kv_heads: int = 2,
) -> Example:
    ids = torch.randint(vocab, (batch, length), generator=generator())
    model = build_seeded(lambda: Llama(vocab, dim, hidden, layers, heads, kv_heads))
    return Example(model, (ids,))
