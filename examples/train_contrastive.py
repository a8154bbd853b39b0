"""Train two encoders to meet: numbers in digits and in words, in-batch negatives.

python examples/train_contrastive.py --steps 1000 --log runs/contrastive
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
import training
from torch import Tensor, nn
from torch.nn import functional as F

ONES = "zero one two three four five six seven eight nine".split()
LETTERS = " 0123456789abcdefghijklmnopqrstuvwxyz"
LENGTH = len("seven seven seven")
SHARPNESS = 10.0


class Encoder(nn.Module):
    """A text as a vector of length one: a bidirectional LSTM over its letters."""

    def __init__(self, hidden: int, dim: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), hidden)
        self.reader = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, dim)

    def forward(self, ids: Tensor) -> Tensor:
        read, _ = self.reader(self.letters(ids))
        return F.normalize(self.head(read.mean(dim=1)), dim=1)


def main(arguments: Sequence[str] | None = None) -> int:
    options = training.parser(__doc__, steps=300, rate=5e-3).parse_args(arguments)
    torch.manual_seed(0)
    model = nn.ModuleList([Encoder(16, 16), Encoder(16, 16)])
    return training.finish(training.fit(loss, model, batches(32), options))


def loss(model: nn.ModuleList, digits: Tensor, words: Tensor) -> Tensor:
    """Each number has to find its own words among those of the whole batch, and the reverse."""
    likeness = SHARPNESS * model[0](digits) @ model[1](words).T
    own = torch.arange(len(digits))
    return (F.cross_entropy(likeness, own) + F.cross_entropy(likeness.T, own)) / 2


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        numbers = torch.randperm(1000)[:size].tolist()
        texts = [f"{number:03}" for number in numbers]
        spoken = [" ".join(ONES[int(digit)] for digit in text) for text in texts]
        yield encoded(texts, 3), encoded(spoken, LENGTH)


def encoded(texts: Sequence[str], length: int) -> Tensor:
    return torch.tensor([[LETTERS.index(letter) for letter in t.ljust(length)] for t in texts])


if __name__ == "__main__":
    sys.exit(main())
