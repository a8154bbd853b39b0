"""A Llama-style decoder in plain PyTorch that keeps its keys and values between calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """How large a decoder is."""

    vocabulary: int = 256
    width: int = 512
    hidden: int = 1376
    layers: int = 4
    heads: int = 8
    key_heads: int = 2
    length: int = 256  # tokens a conversation may have

    @property
    def head(self) -> int:
        return self.width // self.heads


TINY = Size(width=64, hidden=176, layers=2, heads=4, key_heads=2, length=160)


class Attention(nn.Module):
    """Grouped attention over all tokens so far; each key head serves several query heads."""

    keys: Tensor
    values: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.query = nn.Linear(size.width, size.heads * size.head, bias=False)
        self.key = nn.Linear(size.width, size.key_heads * size.head, bias=False)
        self.value = nn.Linear(size.width, size.key_heads * size.head, bias=False)
        self.project = nn.Linear(size.heads * size.head, size.width, bias=False)
        shape = (size.key_heads, size.length, size.head)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def forward(self, x: Tensor, places: Tensor, angles: Tensor) -> Tensor:
        """x is [tokens, width]; places are their positions in the conversation."""
        queries = rotated(self._heads(self.query(x)), angles)
        self.keys.index_copy_(1, places, rotated(self._heads(self.key(x)), angles))
        self.values.index_copy_(1, places, self._heads(self.value(x)))
        seen = torch.arange(self.size.length) <= places.unsqueeze(-1)
        attended = functional.scaled_dot_product_attention(
            queries.unsqueeze(0),
            self.keys.unsqueeze(0),
            self.values.unsqueeze(0),
            attn_mask=seen,
            enable_gqa=True,
        )
        joined: Tensor = self.project(attended.squeeze(0).transpose(0, 1).flatten(1))
        return joined

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.size.head)).transpose(0, 1)
        return heads


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of numbers by angles that grow with the position (RoPE)."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Block(nn.Module):
    """Attention and a gated feed-forward layer (SwiGLU), each behind an RMSNorm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.attention = Attention(size)
        self.feed_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor, places: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), places, angles)
        y = self.feed_norm(x)
        z: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return z


class Decoder(nn.Module):
    """Tokens in, the scores of the next token out; what was read before is kept."""

    position: Tensor
    frequencies: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        powers = torch.arange(0, size.head, 2) / size.head
        self.register_buffer("frequencies", 10000.0**-powers, persistent=False)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)

    def prefill(self, tokens: Tensor) -> Tensor:
        """Begin a conversation with some tokens."""
        self.position.zero_()
        return self.decode(tokens)

    def decode(self, tokens: Tensor) -> Tensor:
        """Go on with the next tokens."""
        places = self.position + torch.arange(tokens.shape[0])
        angles = places.unsqueeze(-1) * self.frequencies
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, places, angles)
        self.position.add_(tokens.shape[0])
        scores: Tensor = self.head(self.norm(x[-1]))
        return scores


def decoder(size: Size, seed: int = 0) -> Decoder:
    """A decoder with weights that are the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Decoder(size).eval().requires_grad_(False)
