"""A DLRM-like recommender: bags of categories and dense features meet in dot products."""

import torch
from torch import Tensor, nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class Recommender(nn.Module):
    pairs: Tensor

    def __init__(self, tables: int, rows: int, dense: int, dim: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="mean") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        pairs = torch.combinations(torch.arange(tables + 1))
        self.register_buffer("pairs", pairs.T.contiguous(), persistent=False)
        self.top = nn.Sequential(
            nn.Linear(dim + len(pairs), 4 * dim),
            nn.ReLU(),
            nn.Linear(4 * dim, 1),
            nn.Sigmoid(),
        )

    def forward(self, dense: Tensor, ids: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x: Tensor = self.bottom(dense)
        bags = [bag(i, o) for bag, i, o in zip(self.bags, ids, offsets, strict=True)]
        vectors = torch.stack([x, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        x = torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], dim=1)
        x = self.top(x).squeeze(1)
        return x


def embeddingbag(
    *,
    batch: int = 64,
    tables: int = 8,
    rows: int = 10000,
    dense: int = 13,
    dim: int = 32,
    bag: int = 4,
) -> Example:
    """Each table looks up `bag` ids per row of the batch on average; bags differ in size."""
    random = generator()
    features = torch.randn(batch, dense, generator=random)
    ids = [torch.randint(rows, (batch * bag,), generator=random) for _ in range(tables)]
    offsets = [bag_offsets(batch, batch * bag, random) for _ in range(tables)]
    return Example(
        build_seeded(lambda: Recommender(tables, rows, dense, dim)), (features, ids, offsets)
    )


def bag_offsets(batch: int, ids: int, random: torch.Generator) -> Tensor:
    """Return where each of `batch` bags starts among `ids` ids; bags may be empty."""
    cuts = torch.randint(ids + 1, (batch - 1,), generator=random)
    return torch.cat([torch.zeros(1, dtype=torch.int64), cuts.sort().values])
