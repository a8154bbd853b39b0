"""Random programs of views, writes through them, and reads give the values of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
import torch
from torch import Tensor

import turbine
from turbine.capture import updates
from turbine.eager import trace_tree

STEPS, MOST_TENSORS = 40, 14

VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.T if x.dim() == 2 else x.unsqueeze(0),
    lambda x: x[0],
    lambda x: x[..., 1:],
    lambda x: x[::2],
    lambda x: x.reshape(-1),
    lambda x: x.view(-1),
    lambda x: x.diagonal(),
    lambda x: x.permute(list(reversed(range(x.dim())))),
    lambda x: x.split(1)[-1],
    lambda x: x.unbind(-1)[0],
    lambda x: x.expand(2, *x.shape),
    lambda x: x.squeeze(),
    lambda x: x.detach(),
    lambda x: x.unfold(0, 2, 1),
]


def step(random: Random, tensors: list[Tensor]) -> None:
    """Change a tensor, or add one."""
    x, y = random.choice(tensors), random.choice(tensors)
    number = random.choice([0.5, -1.0, 2])
    steps: list[Callable[[], object]] = [
        *[lambda: tensors.append(random.choice(VIEWS)(x))] * 4,
        lambda: tensors.append(torch.tanh(x) * number),
        lambda: tensors.append(x + y),
        lambda: tensors.append(x.sum(-1)),
        lambda: x.mul_(number),
        lambda: x.add_(y.mean()),
        lambda: x.clamp_(-2, 2),
        lambda: x.copy_(y.clone()),
        lambda: x[..., 0].fill_(number),
        lambda: x.unsqueeze_(0),
        lambda: x.t_(),
        lambda: x.sum().item(),
    ]
    # Sizes that do not fit, and writes to elements that share memory.
    with suppress(RuntimeError, IndexError):
        random.choice(steps)()
    if len(tensors) > MOST_TENSORS:
        tensors.pop(random.randrange(len(tensors)))


def run(seed: int, device: str) -> list[Tensor]:
    random = Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 4), (4,), (2, 3, 2)]
    tensors = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    for _ in range(STEPS):
        step(random, tensors)
    return tensors


def check(seed: int) -> None:
    found, expected = run(seed, "turbine"), run(seed, "cpu")
    assert [one.shape for one in found] == [one.shape for one in expected], seed
    torch.testing.assert_close(
        [one.cpu() for one in found],
        expected,
        rtol=1e-4,
        atol=1e-4,
        equal_nan=True,
        check_stride=False,  # results of ops may differ in those of axes of size one
        msg=f"seed {seed}",
    )


@pytest.mark.sweep(1)
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_programs_match_the_cpu(first: int) -> None:
    turbine.eager.enable()
    for seed in range(first, first + 100):
        check(seed)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("first", range(1000, 1200, 50))
def test_random_programs_in_inference_mode_match_the_cpu(first: int) -> None:
    turbine.eager.enable()
    with torch.inference_mode():
        for seed in range(first, first + 50):
            check(seed)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(60))
def test_compiled_random_programs_update_memory_in_place(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turbine.eager.enable()
    for module in (trace_tree, updates):
        monkeypatch.setattr(module, "LEAST_BYTES", 0)
    for _ in range(4):
        check(seed)
        turbine.eager.wait()
