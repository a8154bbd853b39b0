"""Train one artifact in several processes: gradients, an all-reduce, and an update.

python examples/train_data_parallel.py                  # torch.distributed averages
python examples/train_data_parallel.py --reduce numpy   # numpy does, and no process has PyTorch
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy

ROWS, WIDTH, CLASSES = 64, 32, 4
Gradients = dict[str, Any]


def export(path: Path, rows: int) -> None:
    """Write an artifact that takes as many rows of a batch as one process has."""
    import torch

    import turbine

    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, CLASSES)
    model = torch.nn.Sequential(*layers)
    step = turbine.aot.export_training_step(
        model,
        torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        args=(torch.randn(rows, WIDTH), torch.zeros(rows, dtype=torch.int64)),
    )
    step.compile(save_to=path)


def make_batch(step: int) -> tuple[Any, Any]:
    """The same batch in every process."""
    patterns = numpy.random.default_rng(0).standard_normal((CLASSES, WIDTH))
    random = numpy.random.default_rng(step)
    labels = random.integers(0, CLASSES, ROWS)
    noise = random.standard_normal((ROWS, WIDTH))
    return (patterns[labels] + noise).astype(numpy.float32), labels


def train(
    path: Path, rank: int, count: int, steps: int, average: Callable[[Gradients], Gradients]
) -> Any:
    """Take steps with a part of each batch; returns the last loss and a weight."""
    import turbine

    artifact = turbine.load(path)
    rows = slice(rank * ROWS // count, (rank + 1) * ROWS // count)
    for step in range(steps):
        x, y = make_batch(step)
        loss, gradients = artifact.gradients(x[rows], y[rows])
        artifact.apply(average(gradients))
    return float(loss), numpy.asarray(artifact.state["0.weight"])


def run_torch(path: Path, rank: int, count: int, steps: int, results: Connection) -> None:
    """One process of a gloo group."""
    import torch
    import torch.distributed as dist

    group = f"file://{path}.group"
    dist.init_process_group("gloo", init_method=group, rank=rank, world_size=count)

    def average(gradients: Gradients) -> Gradients:
        tensors = {name: torch.as_tensor(value) for name, value in gradients.items()}
        for tensor in tensors.values():
            dist.all_reduce(tensor)
        return {name: tensor / count for name, tensor in tensors.items()}

    results.send(train(path, rank, count, steps, average))
    dist.destroy_process_group()


def run_numpy(path: Path, rank: int, count: int, steps: int, results: Connection) -> None:
    """One process, whose gradients the parent averages."""

    def average(gradients: Gradients) -> Gradients:
        results.send({name: numpy.asarray(value) for name, value in gradients.items()})
        mean: Gradients = results.recv()
        return mean

    results.send(train(path, rank, count, steps, average))


def reduce_by_numpy(pipes: list[Connection], steps: int) -> None:
    """Average the gradients of all processes, step by step."""
    for _ in range(steps):
        parts = [pipe.recv() for pipe in pipes]
        mean = {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
        for pipe in pipes:
            pipe.send(mean)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reduce", choices=("torch", "numpy"), default="torch")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.turbine"
        export(path, ROWS // options.processes)
        target = run_torch if options.reduce == "torch" else run_numpy
        pairs = [spawn.Pipe() for _ in range(options.processes)]
        processes = [
            spawn.Process(target=target, args=(path, rank, len(pairs), options.steps, theirs))
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process, (_, theirs) in zip(processes, pairs, strict=True):
            process.start()
            theirs.close()  # so that a process that ends early is noticed
        pipes = [ours for ours, _ in pairs]
        if options.reduce == "numpy":
            reduce_by_numpy(pipes, options.steps)
        results = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    losses, weights = zip(*results, strict=True)
    print(f"losses of {len(losses)} processes: {', '.join(f'{loss:.3f}' for loss in losses)}")
    same = all(numpy.array_equal(weights[0], weight) for weight in weights)
    print("weights are the same in all of them" if same else "weights differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
