"""Trace random ops as functions of a seed and a counter, which are tensors of the program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from turbine import errors
from turbine.capture.effects import draws

aten = torch.ops.aten
# Takes a flat tensor for its size, the seed, and the place of its first number in the stream.
Draw = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Stream:
    """How numbers are drawn: flat, of float32."""

    uniform: Draw  # from 0 to below 1
    normal: Draw

    @staticmethod
    def initial_state(seed: int) -> Tensor:
        """The seed, and the place of the next number."""
        return torch.tensor([seed, 0])


class CountedRandom(TorchDispatchMode):
    """Draws the numbers of random ops from a stream, one place after the other.

    `state` has the seed and the next place.
    """

    def __init__(self, state: Tensor, stream: Stream) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._state = state
        self._stream = stream
        self._count: Any = 0

    def advance(self) -> None:
        """Write the next place of the stream to the state, if numbers were drawn."""
        if not isinstance(self._count, int) or self._count:
            self._state[1:].add_(self._count)

    def next_state(self) -> Tensor:
        """The state after the numbers that were drawn."""
        return torch.cat([self._state[:1], self._state[1:] + self._count])

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform float32 numbers from 0 to below 1 in the shape of a tensor."""
        return self._numbers(self._stream.uniform, like)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal float32 numbers in the shape of a tensor."""
        return self._numbers(self._stream.normal, like)

    def _numbers(self, draw: Draw, like: Tensor) -> Tensor:
        seed, first = self._state[:1].clone(), self._state[1:] + self._count
        self._count = self._count + like.numel()
        flat = like.detach().contiguous().view(-1)
        return draw(flat, seed, first).view(like.shape)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RULES:
            return _RULES[func](self, *args, **(kwargs or {}))
        if draws(func) and not _drops_nothing(func, args, kwargs or {}):
            raise errors.UnsupportedOp(
                f"{func} draws random numbers in a way that compiled code does not",
                hint="use rand, randn, randint, randperm, bernoulli, multinomial, dropout, "
                "normal_, uniform_, exponential_, cauchy_ or geometric_",
            )
        return func(*args, **(kwargs or {}))


def _drops_nothing(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an op draws numbers only for dropout, and its probability is zero."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return "dropout_p" in names and not given.get("dropout_p")


def _dropout(random: CountedRandom, x: Tensor, p: float, train: bool | None) -> Any:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = random.uniform(x) >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * kept * scale, kept


def _empty(size: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.empty(size, dtype=dtype or torch.get_default_dtype())


def _empty_like(x: Tensor, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.empty_like(x, dtype=dtype or x.dtype, memory_format=torch.contiguous_format)


def _integers(random: CountedRandom, like: Tensor, low: int, high: int) -> Tensor:
    numbers = (random.uniform(like) * (high - low)).floor().clamp(max=high - low - 1)
    return numbers.to(like.dtype) + low


def _in(x: Tensor, numbers: Tensor) -> Tensor:
    return numbers.to(x.dtype)


def _permutation(random: CountedRandom, count: int, dtype: torch.dtype | None = None) -> Tensor:
    order = random.uniform(torch.empty(count)).sort(stable=True).indices
    return order.to(dtype or torch.int64)


def _multinomial(
    random: CountedRandom, weights: Tensor, count: int, replacement: bool = False, **_: Any
) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    is_valid = (weights >= 0).all() & total.isfinite().all() & (total > 0).all()
    torch._assert_async(is_valid, "multinomial: weights must be finite, not negative, sum above 0")
    if not replacement:
        times = -torch.log1p(-random.uniform(weights)) / weights  # of a race: the first ones win
        first: Tensor = times.topk(count, largest=False).indices
        return first
    sums = weights.cumsum(-1)
    places = random.uniform(weights.new_empty([*weights.shape[:-1], count])) * sums[..., -1:]
    last = (sums < sums[..., -1:]).sum(-1, keepdim=True)  # that is not zero
    return (sums.unsqueeze(-2) <= places.unsqueeze(-1)).sum(-1).minimum(last)


def _leaky_relu(
    random: CountedRandom,
    x: Tensor,
    noise: Tensor,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    if not training:
        return torch.nn.functional.leaky_relu(x, (low + high) / 2), noise.clone()
    slopes = torch.where(x <= 0, _in(x, _uniform(random, x, low, high)), 1.0)
    return x * slopes, slopes


def _exponential(random: CountedRandom, x: Tensor, rate: float = 1.0) -> Tensor:
    return -torch.log1p(-random.uniform(x)) / rate


def _cauchy(random: CountedRandom, x: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return median + sigma * torch.tan(torch.pi * (random.uniform(x) - 0.5))


def _log_normal(random: CountedRandom, x: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return (random.normal(x) * std + mean).exp()


def _geometric(random: CountedRandom, x: Tensor, p: float) -> Tensor:
    return (torch.log1p(-random.uniform(x)) / math.log1p(-p)).floor() + 1


def _uniform(random: CountedRandom, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return random.uniform(x) * (high - low) + low


def _normal(random: CountedRandom, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return random.normal(x) * std + mean


def _below(random: CountedRandom, x: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return random.uniform(x) < p


# A tensor gives the shape; the arguments of an op follow.
Fill = Callable[..., Tensor]


def _new(fill: Fill) -> Callable[..., Tensor]:
    """A rule for an op that returns a tensor like its argument."""

    def rule(random: CountedRandom, x: Tensor, *given: Any, generator: None = None) -> Tensor:
        return _in(x, fill(random, x, *given))

    return rule


def _in_place(fill: Fill) -> Callable[..., Tensor]:
    """A rule for an op that writes to its argument."""

    def rule(random: CountedRandom, x: Tensor, *given: Any, generator: None = None) -> Tensor:
        return x.copy_(fill(random, x, *given))

    return rule


_RULES: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.rand.default: lambda r, size, **o: _in(x := _empty(size, **o), r.uniform(x)),
    aten.rand_like.default: lambda r, x, **o: _in(y := _empty_like(x, **o), r.uniform(y)),
    aten.randn.default: lambda r, size, **o: _in(x := _empty(size, **o), r.normal(x)),
    aten.randn_like.default: lambda r, x, **o: _in(y := _empty_like(x, **o), r.normal(y)),
    aten.randint.default: lambda r, high, size, dtype=torch.int64, **_: _integers(
        r, _empty(size, dtype), 0, high
    ),
    aten.randint.low: lambda r, low, high, size, dtype=torch.int64, **_: _integers(
        r, _empty(size, dtype), low, high
    ),
    aten.randint_like.default: lambda r, x, high, **o: _integers(r, _empty_like(x, **o), 0, high),
    aten.randint_like.low_dtype: lambda r, x, low, high, **o: _integers(
        r, _empty_like(x, **o), low, high
    ),
    aten.randperm.default: lambda r, n, dtype=None, **_: _permutation(r, n, dtype),
    aten.multinomial.default: _multinomial,
    aten.rrelu_with_noise_functional.default: _leaky_relu,
    aten.bernoulli.default: lambda r, p, **_: _in(p, _below(r, p, p)),
    aten.bernoulli.p: _new(_below),
    aten.bernoulli_.float: _in_place(_below),
    aten.bernoulli_.Tensor: _in_place(_below),
    aten.uniform.default: _new(_uniform),
    aten.uniform_.default: _in_place(_uniform),
    aten.normal_functional.default: _new(_normal),
    aten.normal_.default: _in_place(_normal),
    aten.normal.Tensor_Tensor: lambda r, mean, std, **_: _normal(r, mean + std, mean, std),
    aten.normal.Tensor_float: lambda r, mean, std=1.0, **_: _normal(r, mean, mean, std),
    aten.normal.float_Tensor: lambda r, mean, std, **_: _normal(r, std, mean, std),
    aten.normal.float_float: lambda r, mean, std, size, **o: _in(
        x := _empty(size, **o), _normal(r, x, mean, std)
    ),
    aten.exponential.default: _new(_exponential),
    aten.exponential_.default: _in_place(_exponential),
    aten.cauchy.default: _new(_cauchy),
    aten.cauchy_.default: _in_place(_cauchy),
    aten.log_normal.default: _new(_log_normal),
    aten.log_normal_.default: _in_place(_log_normal),
    aten.geometric.default: _new(_geometric),
    aten.geometric_.default: _in_place(_geometric),
}
COUNTED = frozenset(_RULES)
