"""The values a random program has so far: what a generator of steps chooses from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


@dataclass
class Scope:
    """Names of values and their eager tensors, with the source of choices."""

    choose: random.Random
    values: dict[str, Tensor] = field(default_factory=dict)

    def pick(self, accept: Callable[[Tensor], bool] = lambda _: True) -> str:
        """The name of a value that is accepted, later ones more often."""
        names = [name for name, value in self.values.items() if accept(value)]
        if not names:
            raise NoChoice
        return self.choose.choices(names, range(1, len(names) + 1))[0]

    def pick_float(self, rank: int = 0) -> str:
        """A float value with at least so many axes."""
        return self.pick(lambda x: x.is_floating_point() and x.dim() >= rank)

    def pick_rank(self, rank: int) -> str:
        """A value with at least so many axes."""
        return self.pick(lambda x: x.dim() >= rank)

    def pick_exact_rank(self, *ranks: int) -> str:
        """A float value with one of these numbers of axes, not empty."""
        return self.pick(lambda x: x.is_floating_point() and x.dim() in ranks and x.numel() > 0)

    def one_of(self, options: Sequence[T]) -> T:
        """One of some options."""
        return self.choose.choice(options)

    def integer(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        return self.choose.randint(low, high)

    def chance(self, share: float) -> bool:
        """True in this share of calls."""
        return self.choose.random() < share

    def axis(self, name: str) -> int:
        """An axis, counted from either end."""
        rank = self.values[name].dim()
        if not rank:
            raise NoChoice
        return self.integer(-rank, rank - 1)

    def size(self, name: str, axis: int) -> int:
        """The size of a value along an axis."""
        return int(self.values[name].shape[axis])

    def index(self, size: int) -> int:
        """A valid index, from either end."""
        if not size:
            raise NoChoice
        return self.integer(-size, size - 1)

    def indices(self, size: int, *, negative: bool = True, most: int = 4) -> list[int]:
        """A few valid indices."""
        if not size:
            raise NoChoice
        low = -size if negative else 0
        return [self.integer(low, size - 1) for _ in range(self.integer(1, most))]

    def index_tensor(self, size: int, shape: Sequence[int], *, negative: bool = True) -> str:
        """Code of an index tensor: constant, or computed from a value of the program."""
        if not size:
            raise NoChoice
        low = f"-{size}" if negative and self.chance(0.5) else "0"
        count = 1
        for length in shape:
            count *= length
        if self.chance(0.5):
            numbers = [self.integer(int(low), size - 1) for _ in range(count)]
            return f"torch.tensor({numbers}).reshape({list(shape)})"
        source = self.pick(lambda x: x.numel() > 0 and not x.is_complex())
        # Wrapped to the range, and repeated to the number of indices.
        flat = f"torch.nan_to_num({source}.reshape(-1).float() * 7).clamp(-1e6, 1e6).long()"
        span = size - int(low)
        return (
            f"({flat}.remainder({span}) + {low}).repeat({count})[:{count}].reshape({list(shape)})"
        )

    def number(self) -> float | int:
        """A scalar operand."""
        return self.one_of((0, 1, 2, -1, 3, 0.5, -1.5, 2.0))


class NoChoice(Exception):
    """No value of the program fits a generator."""


def bracket(text: Any) -> str:
    """Code of a tuple or list of numbers as arguments: 1, 2, 3."""
    return ", ".join(map(str, text))
