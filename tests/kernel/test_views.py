"""Views of tiles: the interpreter, compiled code and torch agree on chains of views.

Random chains of views run by `VIEW_CHAINS_SEED=7 pytest tests/kernel/test_views.py`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl

BM = tkl.sym.BM
SEED = int(os.environ.get("VIEW_CHAINS_SEED", "0"))
CHAINS = 6  # in one kernel
LONGEST, MOST_AXES, MOST_LANES = 6, 4, 96


def test_transpose_of_a_reshape_matches_torch() -> None:
    @tk.gen.kernel(1, blocks={BM: 4})
    def columns(x: tkl.InputBuffer[BM, 2, tkl.f32], y: tkl.OutputBuffer[2, BM, tkl.f32]) -> None:
        tile = tkl.load(x, (0, 0), (BM, 2))
        tkl.store(y, (0, 0), tkl.transpose(tkl.reshape(tile[:, None], (BM, 2))))

    assert columns(torch.arange(8.0).reshape(4, 2)).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_slices_of_a_reshape_match_torch() -> None:
    @tk.gen.kernel(1)
    def firsts(x: tkl.InputBuffer[4, 2, tkl.f32], y: tkl.OutputBuffer[4, 1, 1, 1, tkl.f32]) -> None:
        tile = tkl.reshape(tkl.load(x, (0, 0), (4, 2)), (4, 1, 1, 2))
        tkl.store(y, (0, 0, 0, 0), tile[:, :, :, 0:1])

    assert firsts(torch.arange(8.0).reshape(4, 2)).flatten().tolist() == [0, 2, 4, 6]


@dataclass(frozen=True)
class Step:
    """A view, of a tile and of a tensor."""

    text: str
    of_tile: Callable[[Any], Any]
    of_tensor: Callable[[Tensor], Tensor]
    changes: Callable[[Tensor], Tensor] | None = None  # of values alone, lanes stay

    def lanes(self, valid: Tensor) -> Tensor:
        """Which lanes of the result are valid."""
        return valid if self.changes is not None else self.of_tensor(valid)


@dataclass(frozen=True)
class Chain:
    """A tensor after a chain of views, its valid lanes, and the chain in TK."""

    value: Tensor
    valid: Tensor
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Chain:
        change = step.of_tensor if step.changes is None else step.changes
        return replace(
            self,
            value=change(self.value),
            valid=step.lanes(self.valid),
            steps=(*self.steps, step),
        )

    def of_tile(self, tile: Any) -> Any:
        for step in self.steps:
            tile = step.of_tile(tile)
        return tile

    def __str__(self) -> str:
        return "".join(step.text for step in self.steps)


def _reshape(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    sizes, left = [], prod(shape)
    for _ in range(rng.randint(0, MOST_AXES - 1)):
        sizes.append(rng.choice([n for n in range(1, left + 1) if left % n == 0]))
        left //= sizes[-1]
    new = (*sizes, left)
    return Step(f".reshape{new}", lambda t: tkl.reshape(t, new), lambda t: t.reshape(new))


def _transpose(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    order = tuple(rng.sample(range(len(shape)), len(shape)))
    return Step(f".permute{order}", lambda t: tkl.transpose(t, order), lambda t: t.permute(order))


def _cut(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    if not shape:
        return None
    axis = rng.randrange(len(shape))
    start, step = rng.randrange(shape[axis]), rng.choice((1, 1, 2, 3))
    size = rng.randint(1, -(-(shape[axis] - start) // step))
    part = (slice(None),) * axis + (slice(start, start + (size - 1) * step + 1, step),)
    return Step(f"[{':, ' * axis}{start}::{step} x {size}]", lambda t: t[part], lambda t: t[part])


def _pick(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    if len(shape) < 2:
        return None
    axis = rng.randrange(len(shape))
    part = (slice(None),) * axis + (rng.randrange(shape[axis]),)
    return Step(f"[{':, ' * axis}{part[-1]}]", lambda t: t[part], lambda t: t[part])


def _new_axis(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    if len(shape) == MOST_AXES:
        return None
    part = (slice(None),) * rng.randint(0, len(shape)) + (None,)
    return Step(f"[{':, ' * (len(part) - 1)}None]", lambda t: t[part], lambda t: t[part])


def _squeeze(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    single = [axis for axis, size in enumerate(shape) if size == 1]
    if not single or len(shape) < 2:
        return None
    axis = rng.choice(single)
    return Step(f".squeeze({axis})", lambda t: tkl.squeeze(t, axis), lambda t: t.squeeze(axis))


def _broadcast(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    leading = [rng.randint(1, 3)] if len(shape) < MOST_AXES and rng.random() < 0.5 else []
    new = (*leading, *(rng.randint(1, 5) if size == 1 else size for size in shape))
    if prod(new) > MOST_LANES:
        return None
    return Step(f".expand{new}", lambda t: tkl.broadcast_to(t, new), lambda t: t.expand(new))


def _concatenate(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    if not shape or 2 * prod(shape) > MOST_LANES:
        return None
    axis = rng.randrange(len(shape))
    return Step(
        f".cat({axis})",
        lambda t: tkl.concatenate([t, t], axis),
        lambda t: torch.cat([t, t], axis),
    )


def _compute(rng: random.Random, shape: tuple[int, ...]) -> Step | None:
    return Step("*3+1", lambda t: t * 3 + 1, lambda t: t, lambda t: t * 3 + 1)


View = Callable[[random.Random, tuple[int, ...]], Step | None]
# Those that move lanes about stand here more than once.
VIEWS: tuple[View, ...] = (
    *(_reshape, _reshape, _reshape, _transpose, _transpose, _cut, _cut),
    *(_pick, _new_axis, _squeeze, _broadcast, _concatenate, _compute),
)


def random_chain(rng: random.Random, value: Tensor, valid: Tensor) -> Chain:
    chain = Chain(value, valid)
    for _ in range(rng.randint(2, LONGEST)):
        step = rng.choice(VIEWS)(rng, tuple(chain.value.shape))
        chain = chain if step is None else chain.then(step)
    return chain


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_chains_of_views_agree_with_torch(seed: int) -> None:
    rng = random.Random(seed)
    rows, columns, sizes = (
        rng.randint(1, 9),
        rng.randint(1, 17),
        (rng.randint(1, 8), rng.randint(1, 8)),
    )
    x = torch.arange(1.0, rows * columns + 1).reshape(rows, columns)
    start = rng.randint(0, rows - 1), rng.randint(0, columns - 1)
    if rng.random() < 0.5:  # a tile that lies inside is read without checks
        start, sizes = (0, 0), (min(rows, sizes[0]), min(columns, sizes[1]))
    value, valid = torch.zeros(sizes), torch.zeros(sizes, dtype=torch.bool)
    inside = x[start[0] : start[0] + sizes[0], start[1] : start[1] + sizes[1]]
    value[: inside.shape[0], : inside.shape[1]] = inside
    valid[: inside.shape[0], : inside.shape[1]] = True
    chains = [random_chain(rng, value, valid) for _ in range(CHAINS)]

    def views(x: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
        for chain, y in zip(chains, (a, b, c, d, e, f), strict=True):
            tile = chain.of_tile(tkl.load(x, start, sizes))
            tkl.store(y, (0,) * chain.value.ndim, tile)

    outputs = {
        name: tkl.OutputBuffer[(*chain.value.shape, tkl.f32)].filled(-7.0)
        for name, chain in zip("abcdef", chains, strict=True)
    }
    views.__annotations__ = {"x": tkl.InputBuffer[rows, columns, tkl.f32], **outputs}
    kernel = tk.gen.kernel(1)(views)
    for how, results in (("interpreter", kernel.interpret(x)), ("compiled", kernel(x))):
        for chain, result in zip(chains, results, strict=True):
            wanted = torch.where(chain.valid, chain.value, -7.0)
            assert torch.equal(result, wanted), f"{how}, {seed=}: {start} {sizes} {chain}"
