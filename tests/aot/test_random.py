"""Random ops of exports: a stream of numbers that depends on a seed and a counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from tests.models import compiled
from turbine import errors

pytestmark = pytest.mark.sweep(2)

COUNT = 4000


def draw_all(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.rand(COUNT),
        torch.randn(COUNT),
        torch.randint(-5, 5, (COUNT,)),
        torch.bernoulli(torch.full((COUNT,), 0.3)),
        torch.empty(COUNT).uniform_(2, 4),
        torch.empty(COUNT).normal_(1, 2),
        torch.empty(COUNT).exponential_(2.0),
        torch.empty(COUNT).geometric_(0.3),
        torch.normal(x, 1.0),
        nn.functional.dropout(x, 0.25, training=True),
        nn.functional.rrelu(-x, training=True),
    )


def test_numbers_have_pytorchs_distributions_and_change_with_every_call() -> None:
    x = torch.ones(COUNT)
    artifact = compiled(draw_all, x)
    first, second = artifact(x), artifact(x)
    for mine, later, theirs in zip(first, second, draw_all(x), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert not torch.equal(mine, later)
        spread = theirs.double().std()
        assert abs(mine.double().mean() - theirs.double().mean()) < 0.1 * spread
        assert 0.85 < mine.double().std() / spread < 1.15


def test_a_seed_gives_the_same_numbers_again() -> None:
    x = torch.zeros(4)
    one, same, other = (
        compiled(lambda x: torch.rand_like(x), x, seed=seed)(x) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_state_says_which_numbers_come_next() -> None:
    x = torch.zeros(3)
    artifact = compiled(lambda x: torch.randn(3) + x, x)
    kept = artifact.state["random_state"].clone()
    first = artifact(x)
    artifact(x)
    artifact.state["random_state"] = kept
    assert torch.equal(artifact(x), first)


def test_multinomial_follows_its_weights_and_refuses_bad_ones() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7, 0.0], [0.0, 2.0, 2.0, 0.0]])
    artifact = compiled(
        lambda p: (torch.multinomial(p, 2), torch.multinomial(p, COUNT, replacement=True)), weights
    )
    few, many = artifact(weights)
    assert all(len({*row}) == 2 for row in few.tolist())
    assert set(few[1].tolist()) == {1, 2}
    shares = [np.bincount(row, minlength=4) / COUNT for row in many.numpy()]
    np.testing.assert_allclose(shares, weights / weights.sum(1, keepdim=True), atol=0.04)
    with pytest.raises(errors.RunError, match="multinomial: weights must be finite"):
        artifact(torch.zeros(2, 4))


def test_a_permutation_has_every_number_once() -> None:
    x = torch.zeros(1)
    order = compiled(lambda _: torch.randperm(100), x)(x)
    assert sorted(order.tolist()) == [*range(100)]
    assert order.tolist() != [*range(100)]


def test_sizes_may_be_dynamic() -> None:
    sizes = (({0: Dim("n")},),)
    artifact = compiled(lambda x: torch.rand_like(x) + 1, torch.zeros(8), dynamic_shapes=sizes)
    for size in (2, 3000):
        numbers = artifact(torch.zeros(size))
        assert numbers.shape == (size,)
        assert 1 <= numbers.min() <= numbers.max() < 2
        assert len(set(numbers.tolist())) > 0.9 * size


def test_compiled_modules_draw_too() -> None:
    class Noise(turbine.aot.CompiledModule):
        def main(self, x: Any = turbine.aot.AbstractTensor(4)) -> Any:
            return self.noise(x)

        @turbine.aot.CompiledModule.jittable
        def noise(x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    artifact = turbine.aot.export(Noise).compile()
    x = torch.zeros(4)
    assert not torch.equal(artifact.main(x), artifact.main(x))


class Poisson(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.poisson(x)


def test_what_cannot_be_drawn_is_refused_with_its_line() -> None:
    with pytest.raises(errors.UnsupportedOp, match=r"poisson.*\n  where: .*test_random.py"):
        turbine.aot.export(Poisson().eval(), args=(torch.ones(2),))
    with pytest.raises(errors.UnsupportedOp, match="in a branch or a loop"):
        compiled(
            lambda x: torch.cond(x.sum() > 0, lambda x: torch.rand_like(x), lambda x: x + 1, (x,)),
            torch.ones(2),
        )
