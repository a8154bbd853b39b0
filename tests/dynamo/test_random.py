"""Random numbers under torch.compile match eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compiled import agrees, compiled, same

CASES: dict[str, Any] = {
    "rand": lambda x: x * 2 * torch.rand_like(x) + 1,
    "randn": lambda x: x * 2 * torch.randn(4) + 1,
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)) * x * 2 + 1,
    "dropout": lambda x: torch.nn.functional.dropout(x * 2 * x, 0.5) * 2 + x,
    "several, in order": lambda x: (torch.rand(4) * 2 * x + 1) * torch.rand(4) - torch.randn(4),
    "randint and permutation": lambda x: x[torch.randperm(4)] * torch.randint(5, (4,)) * 2 + 1,
    "in place": lambda x: x * torch.empty(4).uniform_(1, 2) * 2 + 1,
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", CASES)
def test_random_numbers_match_eager(case: str) -> None:
    agrees(CASES[case], lambda: (torch.randn(4, requires_grad=True),), ops=0)


def test_forward_and_backward_use_the_same_dropout_mask() -> None:
    drop = compiled(lambda x: torch.nn.functional.dropout(x * 2 * x, 0.5))
    x = torch.ones(64, requires_grad=True)
    result = drop(x)
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, result.detach() != 0)
    assert 0 < int((result != 0).sum()) < 64


def test_a_seed_reproduces_a_run_and_calls_differ() -> None:
    draw = compiled(lambda x: torch.rand_like(x) * 2 + x)
    x = torch.zeros(4)
    torch.manual_seed(3)
    first, second = draw(x), draw(x)
    torch.manual_seed(3)
    same(draw(x), first)
    assert not torch.equal(first, second)


def test_compilation_does_not_advance_the_generator() -> None:
    def state_after(call: Any) -> Tensor:
        torch.manual_seed(5)
        call(torch.ones(4))
        return torch.get_rng_state()

    function = CASES["rand"]
    assert torch.equal(state_after(compiled(function)), state_after(function))


def test_a_training_step_with_dropout_matches_eager() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    agrees(model, lambda: (torch.randn(3, 4),), tolerance=1e-5)
