"""Time a training step of the zoo's models in eager PyTorch, under Inductor and under turbine.

A step is everything: the loss, the gradients and the optimizer's step, which is compiled too. The
three take turns in one process. Prints a table and writes the same figures as JSON; "x" is how
many times faster than eager, by the medians and by the fastest step of each.

    python benchmarks/train.py --tasks lenet,gpt2 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from timing import Call, Timing, round_robin, warn_if_busy

from turbine import errors
from turbine.tables import table
from turbine.zoo.training import TASKS, TINY_TASKS, Task

BACKENDS = ("eager", "inductor", "turbine")
RESULTS = Path(__file__).resolve().parent / "results" / "train.json"
HEADING = (
    "task,difference,eager ms,inductor ms,turbine ms,inductor x,best x,turbine x,best x,compile s"
)


@dataclass(frozen=True)
class Row:
    """One task's figures; a backend that could not take it is in `failures`."""

    task: str
    timings: dict[str, Timing]
    first_steps: dict[str, float]  # seconds: compiling and one step
    difference: float | None  # of turbine's second loss from eager's, relative
    failures: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warn_if_busy()
    rows = []
    for name in options.tasks:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure(name, options.catalog[name], options))
        save(rows, options)
    print(table([HEADING.split(","), *(cells(row) for row in rows)]))
    for row in rows:
        for backend, reason in row.failures.items():
            print(f"{row.task}: no figure for {backend}: {reason}", file=sys.stderr)
    print(f"figures written to {options.output}", file=sys.stderr)
    return 0 if all("turbine" in row.timings for row in rows) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", metavar="A,B", help="which tasks (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time spent on each task")
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--eager-step", action="store_true", help="do not compile optimizers")
    parser.add_argument("--tiny", action="store_true", help="the tasks at test size")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args(arguments)
    options.catalog = TINY_TASKS if options.tiny else TASKS
    options.tasks = options.tasks.split(",") if options.tasks else list(options.catalog)
    for name in options.tasks:
        if name not in options.catalog:
            parser.error(errors.unknown("task", name, options.catalog))
    return options


def measure(name: str, build: Callable[[], Task], options: argparse.Namespace) -> Row:
    torch.compiler.reset()
    calls: dict[str, Call] = {}
    losses, first_steps, failures = {}, {}, {}
    for backend in BACKENDS:
        if backend == "inductor" and options.no_inductor:
            continue
        torch.manual_seed(0)
        call = step_of(build(), backend, options.eager_step)
        started = time.perf_counter()
        try:
            call()
        # Whatever a backend cannot do is its result; Inductor needs a C++ compiler, for one.
        except Exception as error:
            failures[backend] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            continue
        first_steps[backend] = time.perf_counter() - started
        losses[backend] = call()
        calls[backend] = call
    timings = round_robin(calls, seconds=options.seconds)
    return Row(name, timings, first_steps, difference(losses), failures)


def step_of(task: Task, backend: str, eager_step: bool) -> Callable[[], float]:
    """One step of training on a batch that stays the same."""
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=torch.tensor(1e-3))
    batch = next(task.batches())
    loss_of: Callable[..., torch.Tensor] = task.loss
    update: Callable[[], object] = optimizer.step
    if backend != "eager":
        loss_of = torch.compile(task.loss, backend=backend)
    if backend != "eager" and not eager_step:
        update = torch.compile(optimizer.step, backend=backend)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(task.model, *batch)
        loss.backward()
        update()
        return loss.item()

    return step


def difference(losses: dict[str, float]) -> float | None:
    if "turbine" not in losses:
        return None
    return abs(losses["turbine"] - losses["eager"]) / abs(losses["eager"])


def cells(row: Row) -> tuple[str, ...]:
    eager, inductor, ours = (row.timings.get(backend) for backend in BACKENDS)
    assert eager is not None
    compiled = row.first_steps.get("turbine")
    return (
        row.task,
        "-" if row.difference is None else f"{row.difference:.1e}",
        *(milliseconds(timing) for timing in (eager, inductor, ours)),
        *speedups(eager, inductor),
        *speedups(eager, ours),
        "-" if compiled is None else f"{compiled:.1f}",
    )


def milliseconds(timing: Timing | None) -> str:
    return "-" if timing is None else f"{1e3 * timing.median:.2f}"


def speedups(eager: Timing, timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return "-", "-"
    return f"{eager.median / timing.median:.2f}", f"{eager.best / timing.best:.2f}"


def save(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Write all rows so far: an interrupted run keeps what it measured."""
    report = {
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "tiny": options.tiny,
        "rows": [asdict(row) for row in rows],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
