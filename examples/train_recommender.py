"""Train a recommender with bags of embeddings: does this user click on that film?

python examples/train_recommender.py --steps 1000 --log runs/recommender
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
import training
from torch import Tensor, nn
from torch.nn import functional as F

from turbine.zoo.recommender import Recommender, bag_offsets

FILMS, GENRES, FEATURES, SEEN = 500, 5, 4, 6


def main(arguments: Sequence[str] | None = None) -> int:
    options = training.parser(__doc__, steps=300, rate=1e-2).parse_args(arguments)
    torch.manual_seed(0)
    model = Recommender(tables=2, rows=FILMS, dense=FEATURES, dim=16)
    return training.finish(training.fit(loss, model, batches(64), options))


def loss(
    model: nn.Module,
    features: Tensor,
    clicks: Tensor,
    seen: Tensor,
    users: Tensor,
    films: Tensor,
    offers: Tensor,
) -> Tensor:
    return F.binary_cross_entropy(model(features, [seen, films], [users, offers]), clicks)


def batches(size: int) -> Iterator[tuple[Tensor, ...]]:
    """Users with the films they have seen, and a film they are offered.

    A film's genre is its number modulo `GENRES`, which the model is not told. Who has seen mostly
    one genre clicks on that genre; impatient users (the first feature) click on everything.
    """
    random = torch.Generator().manual_seed(0)
    while True:
        features = torch.randn(size, FEATURES, generator=random)
        users = bag_offsets(size, size * SEEN, random)  # where each user's films begin
        of_user = torch.bucketize(torch.arange(size * SEEN), users, right=True) - 1
        taste = torch.randint(GENRES, (size,), generator=random)
        seen = torch.randint(FILMS // GENRES, (size * SEEN,), generator=random) * GENRES
        films = torch.randint(FILMS, (size,), generator=random)
        clicks = (films % GENRES == taste) | (features[:, 0] > 1)
        yield features, clicks.float(), seen + taste[of_user], users, films, torch.arange(size)


if __name__ == "__main__":
    sys.exit(main())
