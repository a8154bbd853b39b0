"""Models of the zoo to train: each with batches of generated data and the loss of one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from turbine.zoo.convnet import cnn, lenet
from turbine.zoo.decoder import gpt2
from turbine.zoo.example import Example
from turbine.zoo.recommender import bag_offsets, embeddingbag
from turbine.zoo.recurrent import bilstm, rnn
from turbine.zoo.resnet import resnet18
from turbine.zoo.seeds import generator

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Task:
    """A model in training mode; `loss(model, *batch)` is what an optimizer makes small.

    >>> from turbine.zoo.training import TINY_TASKS
    >>> task = TINY_TASKS["lenet"]()
    >>> task.loss(task.model, *next(task.batches())).ndim
    0
    """

    model: nn.Module
    draw: Callable[[Generator], Batch]
    loss: Callable[..., Tensor]

    def batches(self, seed: int = 0) -> Iterator[Batch]:
        """Batches without end, the same ones for the same seed."""
        random = torch.Generator().manual_seed(seed)
        while True:
            yield self.draw(random)


def image_task(example: Example, loss: Callable[..., Tensor], classes: int = 10) -> Task:
    """Tell noisy copies of a few images apart."""
    (images,) = example.args
    batch, *sizes = images.shape
    originals = torch.randn(classes, *sizes, generator=generator())

    def draw(random: Generator) -> Batch:
        labels = torch.randint(classes, (batch,), generator=random)
        noise = torch.randn(batch, *sizes, generator=random)
        return originals[labels] + 0.5 * noise, labels

    return Task(example.model.train(), draw, loss)


def regression_task(example: Example, outputs: int = 10) -> Task:
    """Learn a fixed function of the mean of a sequence."""
    (sequence,) = example.args
    weight = torch.randn(sequence.shape[-1], outputs, generator=generator())

    def draw(random: Generator) -> Batch:
        x = torch.randn(sequence.shape, generator=random)
        return x, torch.tanh(x.mean(dim=1) @ weight)

    return Task(example.model.train(), draw, mean_squares)


def contrastive_task(example: Example) -> Task:
    """Match two noisy views of a sequence; the other sequences of the batch are the negatives."""
    (sequence,) = example.args

    def draw(random: Generator) -> Batch:
        x = torch.randn(sequence.shape, generator=random)
        first, second = torch.randn(2, *sequence.shape, generator=random)
        return x + 0.3 * first, x + 0.3 * second

    return Task(example.model.train(), draw, in_batch_contrast)


def language_task(example: Example, vocab: int) -> Task:
    """Predict the next token of a chain in which one in ten is random."""
    (ids,) = example.args
    batch, length = ids.shape

    def draw(random: Generator) -> Batch:
        tokens = torch.randint(vocab, (batch, length + 1), generator=random)
        follows = torch.rand(batch, length + 1, generator=random) < 0.9
        for k in range(1, length + 1):
            tokens[:, k] = torch.where(
                follows[:, k], (3 * tokens[:, k - 1] + 7) % vocab, tokens[:, k]
            )
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Task(example.model.train(), draw, next_token)


def click_task(example: Example, rows: int) -> Task:
    """Predict clicks that depend on the dense features."""
    features, ids, _ = example.args
    batch, dense = features.shape
    tables, count = len(ids), len(ids[0])
    weight = torch.randn(dense, generator=generator())

    def draw(random: Generator) -> Batch:
        x = torch.randn(batch, dense, generator=random)
        bags = [torch.randint(rows, (count,), generator=random) for _ in range(tables)]
        offsets = [bag_offsets(batch, count, random) for _ in range(tables)]
        return x, (x @ weight > 0).float(), *bags, *offsets

    return Task(example.model.train(), draw, click_loss)


def cross_entropy(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def negative_log_likelihood(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(model(images), dim=1), labels)


def mean_squares(model: nn.Module, x: Tensor, expected: Tensor) -> Tensor:
    return F.mse_loss(model(x), expected)


def next_token(model: nn.Module, ids: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), following.flatten())


def click_loss(
    model: nn.Module, dense: Tensor, clicks: Tensor, *bags_and_offsets: Tensor
) -> Tensor:
    tables = len(bags_and_offsets) // 2
    bags, offsets = list(bags_and_offsets[:tables]), list(bags_and_offsets[tables:])
    return F.binary_cross_entropy(model(dense, bags, offsets), clicks)


def in_batch_contrast(model: nn.Module, first: Tensor, second: Tensor) -> Tensor:
    """How badly each row of one view finds its own among all rows of the other."""
    one, other = F.normalize(model(first), dim=1), F.normalize(model(second), dim=1)
    likeness = one @ other.T / 0.1
    return F.cross_entropy(likeness, torch.arange(len(first), device=first.device))


TASKS: dict[str, Callable[[], Task]] = {
    "lenet": lambda: image_task(lenet(batch=32), negative_log_likelihood),
    "cnn": lambda: image_task(cnn(batch=16), cross_entropy),
    "resnet18": lambda: image_task(resnet18(batch=8, size=64, classes=10), cross_entropy),
    "rnn": lambda: regression_task(rnn()),
    "bilstm": lambda: contrastive_task(bilstm()),
    "gpt2": lambda: language_task(gpt2(batch=4, vocab=2048, dim=256, layers=4, heads=4), 2048),
    "embeddingbag": lambda: click_task(embeddingbag(), 10000),
}

TINY_TASKS: dict[str, Callable[[], Task]] = {
    "lenet": lambda: image_task(lenet(batch=8, width=2), negative_log_likelihood),
    "cnn": lambda: image_task(cnn(batch=8, size=16, width=4), cross_entropy),
    # A block with each kind of shortcut: ResNet-18 as a whole takes twice as long to compile.
    "resnet": lambda: image_task(
        resnet18(batch=16, size=32, width=4, classes=10, stages=(1, 1)), cross_entropy
    ),
    "rnn": lambda: regression_task(rnn(batch=8, length=4, features=4, hidden=8)),
    "bilstm": lambda: contrastive_task(bilstm(batch=8, length=3, features=4, hidden=8)),
    "gpt2": lambda: language_task(gpt2(batch=4, length=8, vocab=32, dim=16, layers=1, heads=2), 32),
    "embeddingbag": lambda: click_task(
        embeddingbag(batch=16, tables=2, rows=20, dense=5, dim=8, bag=2), 20
    ),
}
