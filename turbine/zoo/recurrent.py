"""Sequence classifiers over `nn.RNN`, `nn.GRU` and `nn.LSTM`."""

import torch
from torch import Tensor, nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator


class SequenceClassifier(nn.Module):
    """The mean of a recurrent network's outputs over time, then a linear head."""

    def __init__(self, recurrence: nn.RNNBase, classes: int) -> None:
        super().__init__()
        directions = 2 if recurrence.bidirectional else 1
        self.recurrence = recurrence
        self.head = nn.Linear(directions * recurrence.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.recurrence(x)
        x = self.head(x.mean(dim=1))
        return x


def rnn(
    *, batch: int = 8, length: int = 32, features: int = 64, hidden: int = 256, layers: int = 1
) -> Example:
    model = build_seeded(
        lambda: SequenceClassifier(nn.RNN(features, hidden, layers, batch_first=True), 10)
    )
    return Example(model, (torch.randn(batch, length, features, generator=generator()),))


def gru(
    *, batch: int = 8, length: int = 32, features: int = 64, hidden: int = 256, layers: int = 2
) -> Example:
    model = build_seeded(
        lambda: SequenceClassifier(nn.GRU(features, hidden, layers, batch_first=True), 10)
    )
    return Example(model, (torch.randn(batch, length, features, generator=generator()),))


def lstm(
    *,
    batch: int = 8,
    length: int = 32,
    features: int = 64,
    hidden: int = 256,
    layers: int = 2,
    bidirectional: bool = False,
) -> Example:
    model = build_seeded(
        lambda: SequenceClassifier(
            nn.LSTM(features, hidden, layers, batch_first=True, bidirectional=bidirectional), 10
        )
    )
    return Example(model, (torch.randn(batch, length, features, generator=generator()),))


def bilstm(
    *, batch: int = 8, length: int = 32, features: int = 64, hidden: int = 256, layers: int = 1
) -> Example:
    return lstm(
        batch=batch,
        length=length,
        features=features,
        hidden=hidden,
        layers=layers,
        bidirectional=True,
    )
