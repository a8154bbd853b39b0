"""Time the turbine device beside eager PyTorch and torch.compile, and what recording an op costs.

python benchmarks/eager.py --seconds 5
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence

import torch
from timing import round_robin, warn_if_busy
from torch import Tensor, nn
from torch.nn import functional as F

import turbine

GOAL_US = 5.0
RECORDED = 500


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
    print(f"{'recording an op':36}{record():7.1f} us, goal {GOAL_US:.0f}")
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


def record() -> float:
    """Microseconds to record an op."""
    x = torch.randn(64).to("turbine")

    def run() -> None:
        y = x
        for _ in range(RECORDED):
            y = y * 1.5

    with torch.no_grad():
        timing = round_robin({"record": run}, seconds=1.0)["record"]
    synchronize()
    return 1e6 * timing.best / RECORDED


if __name__ == "__main__":
    sys.exit(main())
