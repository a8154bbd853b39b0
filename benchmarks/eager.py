"""Time the turbine device beside eager PyTorch and torch.compile, and what recording an op costs.

python benchmarks/eager.py --seconds 5
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence

import torch
from timing import round_robin, warn_if_busy
from torch import Tensor, nn
from torch.nn import functional as F

import turbine

GOAL_US = 5.0
RECORDED, TURNS = 500, 30


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row, default 5")
    options = parser.parse_args(arguments)
    warn_if_busy()
    turbine.eager.enable()
    print(f"{'eager time over that of':36}{'device':>10}{'torch.compile':>16}")
    for name, make in ROWS.items():
        torch._dynamo.reset()  # otherwise it takes the sizes of rows for dynamic ones
        calls = {
            "eager": make("cpu", lambda f: f),
            "device": make("turbine", lambda f: f),
            "torch.compile": make("cpu", lambda f: torch.compile(f, backend="turbine")),
        }
        for call in calls.values():
            for _ in range(4):
                call()
        turbine.eager.wait()
        found = round_robin(calls, seconds=options.seconds)
        best = {system: timing.best for system, timing in found.items()}
        print(
            f"{name:36}{best['eager'] / best['device']:10.2f}"
            f"{best['eager'] / best['torch.compile']:16.2f}"
        )
    print(f"\n{'us of an op on 64 elements':36}{'y * y':>10}{'y * 1.5':>16}")
    for name, x in operands().items():
        print(f"{name:36}{microseconds(product, x):10.1f}{microseconds(scaled, x):16.1f}")
    return 0


Run = Callable[[], object]
Compile = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


def synchronize() -> None:
    torch.turbine.synchronize()  # type: ignore[attr-defined]


def inference(function: Callable[[Tensor], Tensor], *sizes: int) -> Callable[[str, Compile], Run]:
    def make(device: str, compile: Compile) -> Run:
        x = torch.randn(sizes).to(device)
        call = compile(function)

        def run() -> None:
            result = call(x)
            if device == "turbine":
                synchronize()
            del result

        return run

    return make


def training(model: nn.Module, *sizes: int) -> Callable[[str, Compile], Run]:
    def make(device: str, compile: Compile) -> Run:
        own = copy.deepcopy(model).to(device)
        optimizer = torch.optim.SGD(own.parameters(), 1e-3, momentum=0.9)
        x, labels = torch.randn(sizes).to(device), (torch.arange(sizes[0]) % 10).to(device)
        loss_of = compile(lambda x, labels: F.cross_entropy(own(x), labels))

        def run() -> float:
            optimizer.zero_grad()
            loss = loss_of(x, labels)
            loss.backward()
            optimizer.step()
            return loss.item()

        return run

    return make


def pointwise(x: Tensor) -> Tensor:
    """Twenty ops."""
    for _ in range(5):
        x = torch.sigmoid(x) * 1.5 + 0.1 - 0.2
    return x


def layer_norm(x: Tensor) -> Tensor:
    """A layer norm by hand."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * 2 + 1


MLP = nn.Sequential(
    nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
)
LENET = nn.Sequential(
    nn.Conv2d(1, 6, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(6, 16, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(400, 120),
    nn.ReLU(),
    nn.Linear(120, 10),
)
ROWS = {
    "20 pointwise ops on 1M elements": inference(pointwise, 1024, 1024),
    "layer norm by hand, 4096 x 256": inference(layer_norm, 4096, 256),
    "training an MLP, 128 rows": training(MLP, 128, 784),
    "training LeNet, 64 images": training(LENET, 64, 1, 28, 28),
}


class Given(Tensor):
    """A tensor whose ops give one that exists: the floor of what PyTorch's dispatch takes."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, *_: object) -> Tensor:
        return GIVEN


class New(Tensor):
    """A tensor whose ops give new ones."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, *_: object) -> Tensor:
        return empty(New)


def empty(kind: type[Tensor]) -> Tensor:
    """A tensor of a subclass, without memory."""
    size, step, inside = (64,), (1,), torch.device("lazy", 0)
    return Tensor._make_wrapper_subclass(
        kind, size, step, 0, None, torch.float32, torch.strided, inside
    )


GIVEN = empty(Given)


def product(y: Tensor) -> Tensor:
    """An op on tensors."""
    return y * y


def scaled(y: Tensor) -> Tensor:
    """An op with a number."""
    return y * 1.5


def operands() -> dict[str, Tensor]:
    """What ops are timed on."""
    return {
        f"recorded, goal {GOAL_US:.0f}": torch.randn(64).to("turbine"),
        "floor: PyTorch calls Python": empty(Given),
        "floor: and that makes a tensor": empty(New),
        "eager": torch.randn(64),
    }


def microseconds(apply: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Microseconds of an op, without those of running it on the device."""
    best = float("inf")
    with torch.no_grad():
        for _ in range(TURNS):
            started = time.perf_counter()
            y = x
            for _ in range(RECORDED):
                y = apply(y)
            best = min(best, time.perf_counter() - started)
            del y
            synchronize()
    return 1e6 * best / RECORDED


if __name__ == "__main__":
    sys.exit(main())
