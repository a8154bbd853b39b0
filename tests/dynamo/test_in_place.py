"""Kernels write new values of large inputs to the memory of these inputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from turbine.capture import updates
from turbine.dynamo import records
from turbine.dynamo.entry import backend
from turbine.library.update import is_known

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True, momentum=0.5),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, weight_decay=0.1),
}
SIZES = (128, 130)  # of a tensor that is large enough


@pytest.fixture(autouse=True)
def update_smaller_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "LEAST_BYTES", 1 << 16)


def run(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """The results of a compiled call, and the number of its updates in place."""
    torch.compiler.reset()
    with records.collect() as graphs, torch.no_grad():
        result = torch.compile(function, backend=backend)(*args)
    return result, sum(graph.updates for graph in graphs)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_update_large_weights_in_place(name: str) -> None:
    torch.manual_seed(0)
    # The first two are large; the second is not aligned, the last is small.
    weights = [torch.randn(SIZES), torch.randn(20_001)[1:], torch.randn(70)]
    pairs = [(nn.Parameter(weight.clone()), nn.Parameter(weight)) for weight in weights]
    ours, theirs = ([pair[side] for pair in pairs] for side in (1, 0))
    optimizer, expected = OPTIMIZERS[name](ours), OPTIMIZERS[name](theirs)
    addresses = [weight.data_ptr() for weight in ours]
    with records.collect() as graphs:
        step = torch.compile(optimizer.step, backend=backend)
        for _ in range(3):
            for one, other in pairs:
                one.grad = torch.randn_like(one)
                other.grad = one.grad.clone()
            versions = [weight._version for weight in ours]
            step()
            expected.step()
            assert all(w._version > v for w, v in zip(ours, versions, strict=True))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
        for key, value in expected.state[other].items():
            torch.testing.assert_close(optimizer.state[one][key], value)
    assert [weight.data_ptr() for weight in ours] == addresses
    assert all(graph.updates == 2 for graph in graphs)


def read_before(x: Tensor, y: Tensor) -> Tensor:
    doubled = x * 2 + y
    x.add_(1).mul_(y)
    return doubled


def read_after(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1).mul_(y)
    return x * 2 + y


def update_each_other(x: Tensor, y: Tensor) -> None:
    x.add_(y).mul_(2)
    y.add_(x).mul_(3)


def swap(x: Tensor, y: Tensor) -> None:
    old = x * 1.5 + 1
    x.copy_(y * 2 + 1)
    y.copy_(old)


def copy_only(x: Tensor, y: Tensor) -> None:
    x.copy_(y)


def read_flipped(x: Tensor, y: Tensor) -> None:
    x.copy_((x.flip(0) + 1) * y)


def read_viewed(x: Tensor, y: Tensor) -> None:
    """A view with the shape of x reads y, which is written as well."""
    x.copy_((y.view(-1).view(SIZES) + 1) * x)
    y.mul_(2)


def take_mean(x: Tensor, y: Tensor) -> None:
    x.mul_(2).sub_(x.mean() * y)


def return_too(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1).mul_(y)
    return x.clone()


def return_itself(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1).mul_(y)
    return x


def return_old(x: Tensor, y: Tensor) -> Tensor:
    old = x.clone()
    x.add_(1).mul_(y)
    return old


def write_one_value_twice(x: Tensor, y: Tensor) -> None:
    value = x * 2 + 1
    x.copy_(value)
    y.copy_(value)


def write_view(x: Tensor, y: Tensor) -> None:
    x[1:].mul_(2)
    y.add_(x)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (read_before, 1),
        (read_after, 1),
        (update_each_other, 1),
        (swap, 1),
        (copy_only, 1),
        (read_flipped, 1),
        (read_viewed, 1),
        (take_mean, 1),
        (return_too, 1),
        (return_itself, 0),
        (return_old, 1),
        (write_one_value_twice, 1),
        (write_view, 1),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_every_read_sees_the_value_of_its_time(function: Callable[..., Any], count: int) -> None:
    x, y = torch.randn(2, *SIZES)
    expected = x.clone(), y.clone()
    result, count_found = run(function, x, y)
    torch.testing.assert_close(result, function(*expected))
    torch.testing.assert_close((x, y), expected)
    assert result is None or function is return_itself or result.data_ptr() != x.data_ptr()
    assert count_found == count


def test_others_stay_compiled_without_updates_in_place() -> None:
    """Small tensors, other dtypes, other layouts."""

    def double(x: Tensor) -> None:
        x.mul_(2).add_(1)

    for x in (torch.randn(64), torch.randn(SIZES).double(), torch.randn(SIZES).t()):
        expected = x.clone()
        _, found = run(double, x)
        double(expected)
        torch.testing.assert_close(x, expected)
        assert found == 0


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_tensors_in_memory_are_updated(device: str) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2 + 1

    graph = make_fx(double, tracing_mode="fake")(torch.empty(SIZES, device=device)).graph
    (old,), (output,) = (graph.find_nodes(op=op) for op in ("placeholder", "output"))
    new = output.args[0]
    assert isinstance(new, fx.Node)
    found = updates.find_updates(graph, {old: new}, is_known)
    assert len(found) == (device == "cpu")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_of_writes(seed: int) -> None:
    choose = random.Random(seed)
    program = [make_statement(choose) for _ in range(choose.randint(2, 8))]
    kept = [make_expression(choose) for _ in range(choose.randint(0, 2))]

    def function(*tensors: Tensor) -> list[Tensor]:
        results = []
        for write in program:
            write(tensors)
        for read in kept:
            results.append(read(tensors) + 1)
        return results

    given = [0.5 * torch.randn(SIZES) for _ in range(3)]
    expected = [tensor.clone() for tensor in given]
    results, _ = run(function, *given)
    torch.testing.assert_close(results, function(*expected))
    torch.testing.assert_close(given, expected)


Read = Callable[[tuple[Tensor, ...]], Tensor]


def make_expression(choose: random.Random) -> Read:
    """A random expression of three tensors, whose values stay below 1 or so."""
    place, other = choose.randrange(3), choose.randrange(3)
    number = choose.uniform(0.1, 0.9)
    views: list[Callable[[Tensor], Tensor]] = [
        lambda x: x,
        lambda x: x.flip(1),
        lambda x: x.view(-1).view(SIZES),
        lambda x: x.mean(),
        lambda x: x[:1],
        lambda x: x.clone(),
        lambda x: torch.where(x > 0.1, x, -x / 3),
    ]
    view = choose.choice(views)
    combinations: list[Read] = [
        lambda all: view(all[place]) * number,
        lambda all: all[other] * number + view(all[place]) * 0.1,
        lambda all: (all[other].abs() + 0.5).sqrt() * view(all[place]) * number,
        lambda all: torch.maximum(all[other], view(all[place])) - number,
    ]
    return choose.choice(combinations)


def make_statement(choose: random.Random) -> Callable[[tuple[Tensor, ...]], object]:
    place, read = choose.randrange(3), make_expression(choose)
    writes: list[Callable[[tuple[Tensor, ...]], object]] = [
        lambda all: all[place].copy_(read(all)),
        lambda all: all[place].mul_(0.5).add_(read(all), alpha=0.3),
        lambda all: all[place][3:].sub_(read(all).mean()),
        lambda all: all[place].lerp_(read(all).expand(SIZES), 0.25),
    ]
    return choose.choice(writes)
