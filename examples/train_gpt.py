"""Train a small GPT to add: it reads "27+48=" and writes "75".

python examples/train_gpt.py --steps 2000 --rate 2e-3 --log runs/gpt
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
import training
from torch import Tensor, nn
from torch.nn import functional as F

from turbine import zoo

LETTERS = "0123456789+=."
SUM = len("27+48=075.")
IGNORED = -100


def main(arguments: Sequence[str] | None = None) -> int:
    options = training.parser(__doc__, steps=200, rate=2e-3).parse_args(arguments)
    torch.manual_seed(0)
    model = zoo.gpt2(length=SUM, vocab=len(LETTERS), dim=64, layers=2, heads=4).model.train()
    losses = training.fit(loss, model, batches(32), options)
    print("after training: " + completed(model, "27+48="))
    return training.finish(losses)


def loss(model: nn.Module, ids: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), following.flatten(), ignore_index=IGNORED)


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sums as letters, and the letter that follows each; what is asked cannot be foreseen."""
    while True:
        terms = torch.randint(100, (size, 2)).tolist()
        ids = torch.tensor([encoded(f"{a:02}+{b:02}={a + b:03}.") for a, b in terms])
        following = ids[:, 1:].clone()
        following[:, : len("27+48")] = IGNORED
        yield ids[:, :-1].contiguous(), following


def encoded(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


@torch.no_grad()
def completed(model: nn.Module, text: str) -> str:
    while len(text) < SUM:
        scores = model(torch.tensor([encoded(text)]))
        text += LETTERS[int(scores[0, -1].argmax())]
    return text


if __name__ == "__main__":
    sys.exit(main())
