"""The training loop of the examples: torch.compile, a progress bar and TensorBoard.

python examples/train_lenet.py --steps 300 --log runs/lenet
tensorboard --logdir runs
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turbine import errors

BACKENDS = ("turbine", "inductor", "eager")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": lambda weights, lr: torch.optim.SGD(weights, lr, momentum=0.9),
}


def parser(description: str | None, *, steps: int, rate: float) -> argparse.ArgumentParser:
    """The options every example has, with its own number of steps and learning rate."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=steps, help=f"default {steps}")
    parser.add_argument("--rate", type=float, default=rate, help=f"learning rate, default {rate}")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--backend", choices=BACKENDS, default="turbine")
    parser.add_argument("--compile-step", action="store_true", help="compile the optimizer too")
    parser.add_argument("--log", type=Path, help="folder for TensorBoard")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def fit(
    loss_of: Callable[..., Tensor],
    model: nn.Module,
    batches: Iterable[tuple[Tensor, ...]],
    options: argparse.Namespace,
) -> list[float]:
    """Train with `loss_of(model, *batch)`; gives the loss of every step."""
    if options.backend != "eager":
        loss_of = torch.compile(loss_of, backend=options.backend)
    # A tensor, for a schedule changes it: the compiled step reads it, and is not compiled again.
    optimizer = OPTIMIZERS[options.optimizer](model.parameters(), lr=torch.tensor(options.rate))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, total_steps=options.steps + 1, cycle_momentum=False
    )
    step: Callable[[], Any] = optimizer.step
    if options.compile_step and options.backend != "eager":
        step = torch.compile(optimizer.step, backend=options.backend)

    losses: list[float] = []
    with Log(options.log) as log:
        for batch in progress(islice(batches, options.steps), options, losses):
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = loss_of(model, *batch)
            loss.backward()
            step()
            schedule.step()
            losses.append(loss.item())
            log.write(
                len(losses),
                loss=losses[-1],
                rate=float(schedule.get_last_lr()[0]),
                seconds=time.perf_counter() - started,
            )
    return losses


def finish(losses: Sequence[float]) -> int:
    """Say how it went; the exit code is whether the loss fell."""
    few = max(len(losses) // 10, 1)
    first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
    print(f"{len(losses)} steps: loss {first:.4f} -> {last:.4f}")
    return 0 if last < first else 1


def progress(
    batches: Iterable[Any], options: argparse.Namespace, losses: Sequence[float]
) -> Iterator[Any]:
    """The batches, while stderr says how far it is; needs tqdm for a bar that moves."""
    try:
        from tqdm import tqdm
    except ImportError:
        tqdm = None
    if options.quiet:
        yield from batches
    elif tqdm is None:
        yield from lines(batches, options.steps, losses)
    else:
        with tqdm(batches, total=options.steps, unit="step", file=sys.stderr) as bar:
            for batch in bar:
                yield batch
                bar.set_postfix(loss=f"{losses[-1]:.4f}")


def lines(batches: Iterable[Any], steps: int, losses: Sequence[float]) -> Iterator[Any]:
    """A line for every tenth of the way."""
    for batch in batches:
        yield batch
        if len(losses) % max(steps // 10, 1) == 0:
            print(f"step {len(losses)} of {steps}: loss {losses[-1]:.4f}", file=sys.stderr)


class Log:
    """Writes figures for TensorBoard, if there is a folder to write to."""

    def __init__(self, folder: Path | None) -> None:
        self.writer: Any = None
        if folder is not None:
            self.writer = _writer(folder)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def write(self, step: int, **figures: float) -> None:
        if self.writer is not None:
            for name, figure in figures.items():
                self.writer.add_scalar(name, figure, step)


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise errors.MissingExtra(
            "TensorBoard is not installed",
            hint="pip install 'turbine[train]', or leave out --log",
        ) from error
    return SummaryWriter(str(folder))
