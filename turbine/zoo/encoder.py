"""Bidirectional transformers over padded sequences: BERT and `nn.TransformerEncoder`."""

import torch
from torch import Tensor, nn

from turbine.zoo.attention import FeedForward, SelfAttention
from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class PostNormBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, heads)
        self.attention_norm = nn.LayerNorm(dim, eps=1e-12)
        self.feed_forward = FeedForward(dim)
        self.feed_forward_norm = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        x = self.feed_forward_norm(x + self.feed_forward(x))
        return x


class Bert(nn.Module):
    position_ids: Tensor

    def __init__(self, vocab: int, positions: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=0)
        self.positions = nn.Embedding(positions, dim)
        self.token_types = nn.Embedding(2, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(PostNormBlock(dim, heads) for _ in range(layers))
        self.pooler = nn.Sequential(nn.Linear(dim, dim), nn.Tanh())
        position_ids = torch.arange(positions).unsqueeze(0)
        self.register_buffer("position_ids", position_ids, persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> dict[str, Tensor]:
        positions = self.positions(self.position_ids[:, : input_ids.shape[1]])
        x = self.words(input_ids) + self.token_types(token_type_ids) + positions
        x = self.dropout(self.norm(x))
        padding = 1.0 - attention_mask[:, None, None, :].to(x.dtype)
        mask = padding * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, mask)
        return {"last_hidden_state": x, "pooler_output": self.pooler(x[:, 0])}


class PaddedEncoder(nn.Module):
    def __init__(self, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, batch_first=True)
        # Nested tensors cut padding to sizes that only the values of the mask tell.
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.encoder(x, src_key_padding_mask=padding)
        return x


def bert(
    *,
    batch: int = 1,
    length: int = 128,
    vocab: int = 30522,
    dim: int = 384,
    layers: int = 6,
    heads: int = 12,
) -> Example:
    random = generator()
    ids = torch.randint(1, vocab, (batch, length), generator=random)
    present = present_tokens(batch, length, random)
    types = (torch.arange(length) >= length // 3).long().expand(batch, length).contiguous()
    model = build_seeded(lambda: Bert(vocab, 4 * length, dim, layers, heads))
    masks = {"attention_mask": present.long(), "token_type_ids": types * present}
    return Example(model, (ids * present,), masks)


def transformer_encoder(
    *, batch: int = 4, length: int = 128, dim: int = 256, layers: int = 4, heads: int = 8
) -> Example:
    random = generator()
    x = torch.randn(batch, length, dim, generator=random)
    padding = ~present_tokens(batch, length, random)
    return Example(build_seeded(lambda: PaddedEncoder(dim, layers, heads)), (x, padding))


def present_tokens(batch: int, length: int, random: torch.Generator) -> Tensor:
    """Return where each of `batch` sequences, at least half of `length`, has a token."""
    lengths = torch.randint(length // 2, length, (batch, 1), generator=random)
    return torch.arange(length) < lengths
