"""Multi-head self-attention, shared by the transformers."""

from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """Self-attention of (batch, length, dim); `mask` is added to the scores."""

    def __init__(self, dim: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.project = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = self.project(x.transpose(1, 2).flatten(2))
        return x


class FeedForward(nn.Sequential):
    def __init__(self, dim: int, approximate: str = "none") -> None:
        super().__init__(
            nn.Linear(dim, 4 * dim),
            nn.GELU(approximate=approximate),
            nn.Linear(4 * dim, dim),
        )


class PreNormBlock(nn.Module):
    """Attention and feed-forward, each on the normalized residual stream."""

    def __init__(self, dim: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, causal)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, approximate="tanh" if causal else "none")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x
