"""Train LeNet to read the digits of a pocket calculator, drawn askew and with noise.

python examples/train_lenet.py --steps 300 --log runs/lenet
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
import training
from torch import Tensor, nn
from torch.nn import functional as F

from turbine import zoo

# Which of the seven bars are lit: top, the two above, middle, the two below, bottom.
DIGITS = "1110111 0010010 1011101 1011011 0111010 1101011 1101111 1010010 1111111 1111011".split()
# Where each bar is: rows and columns.
BARS = (
    (0, 1, 0, 10),
    (0, 9, 0, 1),
    (0, 9, 9, 10),
    (8, 9, 0, 10),
    (8, 17, 0, 1),
    (8, 17, 9, 10),
    (16, 17, 0, 10),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = training.parser(__doc__, steps=300, rate=3e-3).parse_args(arguments)
    torch.manual_seed(0)
    model = zoo.lenet().model.train()
    return training.finish(training.fit(loss, model, batches(32), options))


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pictures of 28x28 and the digits they show."""
    digits = torch.stack([drawn(bars) for bars in DIGITS])
    while True:
        labels = torch.randint(10, (size,))
        images = torch.zeros(size, 1, 28, 28)
        corners = torch.randint(1, 10, (size, 2)).tolist()
        for image, label, (top, left) in zip(images, labels, corners, strict=True):
            image[0, top : top + 17, left : left + 10] = digits[label]
        yield images + 0.2 * torch.randn(images.shape), labels


def drawn(lit: str) -> Tensor:
    picture = torch.zeros(17, 10)
    for bar, (top, bottom, left, right) in zip(lit, BARS, strict=True):
        picture[top:bottom, left:right] += float(bar)
    return picture.clamp(max=1)


if __name__ == "__main__":
    sys.exit(main())
