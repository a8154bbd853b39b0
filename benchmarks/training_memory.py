"""Compare the peak memory of training steps: eager PyTorch beside a training artifact.

Each runs in a process of its own. What a process needs before it has a model, such as PyTorch's
libraries, is subtracted; mapped pages of the artifact's file count.

    python benchmarks/training_memory.py --width 2048 --layers 3 --rows 64
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from turbine.tables import table

STEPS = 4
CLASSES = 10
MEGABYTE = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    sizes = options.width, options.layers, options.rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.turbine"
        run(partial(export, path, *sizes))
        eager, artifact = run(partial(train_eagerly, *sizes)), run(partial(train, path, *sizes))
    weights = options.layers * options.width**2 * 4 / 1024**2
    rows = [
        ("", "peak MB", "of eager"),
        ("weights", f"{weights:.0f}", ""),
        ("eager PyTorch", f"{eager:.0f}", "1.00"),
        ("artifact", f"{artifact:.0f}", f"{artifact / eager:.2f}"),
    ]
    print(table(rows, right=(1, 2)))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048, help="of each layer")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64, help="of a batch")
    return parser.parse_args(arguments)


def run(function: Callable[[], Any]) -> Any:
    """The result of a function in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function)


def build(width: int, layers: int, rows: int) -> tuple[Any, ...]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(rows, width), torch.randint(0, CLASSES, (rows,))
    return model, nn.CrossEntropyLoss(), optimizer, batch


def export(path: Path, *sizes: int) -> None:
    import turbine

    model, loss, optimizer, batch = build(*sizes)
    step = turbine.aot.export_training_step(
        model, loss, optimizer=optimizer, args=batch, predict_args=()
    )
    step.compile(save_to=path)


def train_eagerly(*sizes: int) -> float:
    import torch

    torch.nn.functional.relu(torch.ones(8)).sum()
    start = peak()
    model, loss, optimizer, (x, y) = build(*sizes)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return peak() - start


def train(path: Path, width: int, layers: int, rows: int) -> float:
    import numpy as np

    import turbine

    start = peak()
    artifact = turbine.load(path)
    x = np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32)
    y = np.zeros(rows, np.int64)
    for _ in range(STEPS):
        artifact.train_step(x, y)
    return peak() - start


def peak() -> float:
    """The most memory that this process had, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) / MEGABYTE


if __name__ == "__main__":
    sys.exit(main())
