"""Time the models of the zoo in eager PyTorch, under Inductor and compiled by turbine.

Prints a table and writes the same figures as JSON. The three take turns in one process. Times are
medians, "x" is how many times faster than eager that makes it, and "best x" compares the fastest
call of each instead: where the two ratios differ much, the machine was busy with other things.

    python benchmarks/models.py --models mlp,resnet18 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import iree.runtime
import torch
from timing import Call, Timing, round_robin, warn_if_busy
from torch.utils._pytree import tree_leaves

import turbine
from turbine import errors, zoo
from turbine.zoo import Example

ERROR_LIMIT = 1e-4
RESULTS = Path(__file__).resolve().parent / "results" / "models.json"


@dataclass(frozen=True)
class Row:
    """One model's figures; `inductor` is None where it was left out or could not take the model."""

    model: str
    error: float  # largest difference from eager, relative to eager's largest value
    eager: Timing
    inductor: Timing | None
    turbine: Timing
    export_seconds: float
    compile_seconds: float
    strategy: str
    artifact_bytes: int


@dataclass(frozen=True)
class Failure:
    """Why a model has no figures."""

    model: str
    reason: str


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    limit_threads(options.threads)
    warn_if_busy()
    rows: list[Row | Failure] = []
    print(heading())
    for name in options.models:
        rows.append(measure_or_fail(name, options))
        print(line(rows[-1]), flush=True)
        save(rows, options)
    print(f"figures written to {options.output}", file=sys.stderr)
    return 0 if all(is_good(row) for row in rows) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", metavar="A,B", help="which models (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time spent calling each model")
    parser.add_argument("--no-inductor", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-cache", action="store_true", help="compile even what is cached")
    parser.add_argument("--tiny", action="store_true", help="the models at test size")
    parser.add_argument("--strategy", default="auto", help="given to ExportOutput.compile")
    parser.add_argument("--threads", type=int, help="threads for PyTorch and for turbine")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args(arguments)
    options.catalog = zoo.TINY if options.tiny else zoo.MODELS
    options.models = options.models.split(",") if options.models else list(options.catalog)
    for name in options.models:
        if name not in options.catalog:
            parser.error(errors.unknown("model", name, options.catalog))
    return options


def limit_threads(threads: int | None) -> None:
    """Has to come before the first call: thread pools keep the size they start with."""
    if threads is not None:
        torch.set_num_threads(threads)
        iree.runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")


def measure_or_fail(name: str, options: argparse.Namespace) -> Row | Failure:
    """Whatever goes wrong with a model is its result, and the next model follows."""
    try:
        return measure(name, options.catalog[name], options)
    except Exception as error:
        print(f"{name}: {error}", file=sys.stderr)
        return Failure(name, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


def measure(name: str, build: Callable[[], Example], options: argparse.Namespace) -> Row:
    example = build()
    started = time.perf_counter()
    exported = turbine.aot.export(
        example.model,
        args=example.args,
        kwargs=example.kwargs,
        dynamic_shapes=example.dynamic_shapes,
    )
    exported_at = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.turbine"
        artifact = exported.compile(
            path, strategy=options.strategy, cache=False if options.no_cache else None
        )
        compiled_at = time.perf_counter()
        size = path.stat().st_size
    with torch.inference_mode():
        calls = {"eager": call_of(example.model, example), "turbine": call_of(artifact, example)}
        error = max_relative_error(calls["turbine"](), calls["eager"]())
        inductor = None if options.no_inductor else inductor_call(name, example)
        if inductor is not None:
            calls["inductor"] = inductor
        timings = round_robin(calls, seconds=options.seconds)
    return Row(
        name,
        error,
        timings["eager"],
        timings.get("inductor"),
        timings["turbine"],
        exported_at - started,
        compiled_at - exported_at,
        artifact.manifest["strategy"],
        size,
    )


def call_of(function: Callable[..., Any], example: Example) -> Callable[[], Any]:
    return lambda: function(*example.args, **example.kwargs)


def inductor_call(name: str, example: Example) -> Call | None:
    """The model under torch.compile, already compiled; None where Inductor cannot take it."""
    torch.compiler.reset()
    call = call_of(torch.compile(example.model), example)
    try:
        call()
    except RuntimeError as error:
        print(f"{name}: no Inductor figure: {error}", file=sys.stderr)
        return None
    return call


def max_relative_error(found: Any, expected: Any) -> float:
    """The largest difference over all results, relative to the largest value expected of each."""
    pairs = zip(tree_leaves(found), tree_leaves(expected), strict=True)
    return max(relative_error(a, b) for a, b in pairs)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    largest = expected.double().abs().max().item()
    return (found.double() - expected.double()).abs().max().item() / (largest or 1.0)


def is_good(row: Row | Failure) -> bool:
    """Whether the model ran and was right; an error that is not a number is wrong."""
    return isinstance(row, Row) and row.error <= ERROR_LIMIT


def median_speedup(row: Row, timing: Timing | None) -> float | None:
    return None if timing is None else row.eager.median / timing.median


def best_speedup(row: Row, timing: Timing | None) -> float | None:
    return None if timing is None else row.eager.best / timing.best


# Each column after the model's name: heading, width, value, format.
COLUMNS: tuple[tuple[str, int, Callable[[Row], float | str | None], str], ...] = (
    ("error", 9, lambda row: row.error, ".1e"),
    ("eager ms", 10, lambda row: 1e3 * row.eager.median, ".2f"),
    ("inductor ms", 13, lambda row: 1e3 * row.inductor.median if row.inductor else None, ".2f"),
    ("turbine ms", 12, lambda row: 1e3 * row.turbine.median, ".2f"),
    ("inductor x", 12, lambda row: median_speedup(row, row.inductor), ".2f"),
    ("best x", 8, lambda row: best_speedup(row, row.inductor), ".2f"),
    ("turbine x", 11, lambda row: median_speedup(row, row.turbine), ".2f"),
    ("best x", 8, lambda row: best_speedup(row, row.turbine), ".2f"),
    ("export s", 10, lambda row: row.export_seconds, ".1f"),
    ("compile s", 11, lambda row: row.compile_seconds, ".1f"),
    ("strategy", 10, lambda row: row.strategy, ""),
    ("MB", 7, lambda row: row.artifact_bytes / 2**20, ".1f"),
)
NAME_WIDTH = 20


def heading() -> str:
    return "model".ljust(NAME_WIDTH) + "".join(title.rjust(width) for title, width, _, _ in COLUMNS)


def line(row: Row | Failure) -> str:
    """A row of the table as text."""
    name = row.model.ljust(NAME_WIDTH)
    if isinstance(row, Failure):
        return f"{name} {row.reason}"
    return name + "".join(cell(value(row), form).rjust(width) for _, width, value, form in COLUMNS)


def cell(value: float | str | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def save(rows: Sequence[Row | Failure], options: argparse.Namespace) -> None:
    """Write all rows so far: an interrupted run keeps what it measured."""
    report = {
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count()},
        "versions": {
            "turbine": turbine.__version__,
            "torch": torch.__version__,
            "iree": version("iree-base-runtime"),
        },
        "torch_threads": torch.get_num_threads(),
        "seconds": options.seconds,
        "strategy": options.strategy,
        "tiny": options.tiny,
        "rows": [asdict(row) for row in rows],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
