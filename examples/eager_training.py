"""Train a classifier of spirals on the turbine device, and on the CPU with the same code.

python examples/eager_training.py --steps 200
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="default 200")
    options = parser.parse_args(arguments)
    turbine.eager.enable()
    losses = {device: train(device, options.steps) for device in ("cpu", "turbine")}
    print(turbine.eager.explain())
    apart = abs(losses["cpu"] - losses["turbine"])
    print(f"losses differ by {apart:.2g}")
    return 0 if apart < 1e-3 else 1


def train(device: str, steps: int) -> float:
    """The loss after some steps; only `device` differs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
    )
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    points, arms = spirals()
    points, arms = points.to(device), arms.to(device)
    started = time.perf_counter()
    loss = torch.zeros(())
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points), arms)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{device}: step {step}, loss {loss.item():.4f}")
    last = loss.item()
    print(f"{device}: loss {last:.4f} after {time.perf_counter() - started:.2f} s")
    return last


def spirals() -> tuple[Tensor, Tensor]:
    """Points on the arms of three spirals, and the number of the arm."""
    arms = torch.arange(999) % 3
    radius = torch.rand(999)
    angle = 5 * radius + arms * 2.1 + 0.1 * torch.randn(999)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arms


if __name__ == "__main__":
    sys.exit(main())
