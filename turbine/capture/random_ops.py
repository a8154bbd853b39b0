"""Trace random ops as functions of a seed and a counter, which are tensors of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from turbine import errors
from turbine.capture.effects import draws

aten = torch.ops.aten
# Takes a flat tensor for its size, the seed, and the place of its first number in the stream.
Draw = Callable[[Tensor, Tensor, Tensor], Tensor]


class CountedRandom(TorchDispatchMode):
    """Draws the numbers of random ops from one stream, one place after the other.

    `state` has the seed and the next place. `uniform` and `normal` draw flat float32 numbers.
    """

    def __init__(self, state: Tensor, uniform: Draw, normal: Draw) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._state = state
        self._draw = {"uniform": uniform, "normal": normal}
        self._count: Any = 0

    def advance(self) -> None:
        """Write the next place of the stream to the state, if numbers were drawn."""
        if not isinstance(self._count, int) or self._count:
            self._state[1:].add_(self._count)

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform float32 numbers from 0 to below 1 in the shape of a tensor."""
        return self._numbers("uniform", like)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal float32 numbers in the shape of a tensor."""
        return self._numbers("normal", like)

    def _numbers(self, kind: str, like: Tensor) -> Tensor:
        seed, first = self._state[:1].clone(), self._state[1:] + self._count
        self._count = self._count + like.numel()
        flat = like.detach().contiguous().view(-1)
        return self._draw[kind](flat, seed, first).view(like.shape)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RULES:
            return _RULES[func](self, *args, **(kwargs or {}))
        if draws(func) and not _drops_nothing(func, args, kwargs or {}):
            raise errors.ExportError(
                f"{func} draws random numbers in a way that is not exported",
                hint="use rand, randn, randint, bernoulli, dropout, normal_ or uniform_",
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
    aten.bernoulli.default: lambda r, p, **_: _in(p, r.uniform(p) < p),
    aten.bernoulli.p: lambda r, x, p, **_: _in(x, r.uniform(x) < p),
    aten.bernoulli_.float: lambda r, x, p=0.5, **_: x.copy_(r.uniform(x) < p),
    aten.bernoulli_.Tensor: lambda r, x, p, **_: x.copy_(r.uniform(x) < p),
    aten.uniform_.default: lambda r, x, low=0.0, high=1.0, **_: x.copy_(
        r.uniform(x) * (high - low) + low
    ),
    aten.normal_.default: lambda r, x, mean=0.0, std=1.0, **_: x.copy_(r.normal(x) * std + mean),
    aten.normal.Tensor_Tensor: lambda r, mean, std, **_: r.normal(mean + std) * std + mean,
    aten.normal.Tensor_float: lambda r, mean, std=1.0, **_: r.normal(mean) * std + mean,
    aten.exponential_.default: lambda r, x, rate=1.0, **_: x.copy_(
        -torch.log1p(-r.uniform(x)) / rate
    ),
}
