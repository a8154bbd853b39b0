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
from collections.abc import Callable, Mapping, Sequence
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
    """One model's figures; what was not measured is None. Speed-ups are eager's time over theirs."""

    model: str
    max_relative_error: float | None = None
    eager_ms: float | None = None
    inductor_ms: float | None = None
    turbine_ms: float | None = None
    turbine_speedup: float | None = None
    turbine_best_speedup: float | None = None
    inductor_speedup: float | None = None
    inductor_best_speedup: float | None = None
    export_s: float | None = None
    compile_s: float | None = None
    strategy: str | None = None
    artifact_mb: float | None = None
    failure: str | None = None

    @property
    def good(self) -> bool:
        """Whether the model ran and was right; an error that is not a number is wrong."""
        error = self.max_relative_error
        return self.failure is None and error is not None and error <= ERROR_LIMIT


# Heading, field of Row and format of each column after the model's name.
COLUMNS = (
    ("error", "max_relative_error", ".1e"),
    ("eager ms", "eager_ms", ".2f"),
    ("inductor ms", "inductor_ms", ".2f"),
    ("turbine ms", "turbine_ms", ".2f"),
    ("turbine x", "turbine_speedup", ".2f"),
    ("best x", "turbine_best_speedup", ".2f"),
    ("inductor x", "inductor_speedup", ".2f"),
    ("best x", "inductor_best_speedup", ".2f"),
    ("export s", "export_s", ".1f"),
    ("compile s", "compile_s", ".1f"),
    ("strategy", "strategy", ""),
    ("MB", "artifact_mb", ".1f"),
)
NAME_WIDTH = 20
WIDTH = 12


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    limit_threads(options.threads)
    warn_if_busy()
    rows: list[Row] = []
    print("model".ljust(NAME_WIDTH), *(heading.rjust(WIDTH) for heading, _, _ in COLUMNS), sep="")
    for name in options.models:
        rows.append(measure_or_fail(name, options))
        print(line(rows[-1]), flush=True)
        save(rows, options)
    print(f"figures written to {options.output}", file=sys.stderr)
    warn_if_busy()
    return 0 if all(row.good for row in rows) else 1


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


def measure_or_fail(name: str, options: argparse.Namespace) -> Row:
    """One model's row; whatever goes wrong with a model is its result, and the next one follows."""
    try:
        return measure(name, options.catalog[name], options)
    except Exception as error:
        print(f"{name}: {error}", file=sys.stderr)
        return Row(name, failure=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def measure(name: str, build: Callable[[], Example], options: argparse.Namespace) -> Row:
    example = build()
    started = time.perf_counter()
    exported = turbine.aot.export(
        example.model,
        args=example.args,
        kwargs=example.kwargs,
        dynamic_shapes=example.dynamic_shapes,
    )
    export_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.turbine"
        started = time.perf_counter()
        artifact = exported.compile(
            path, strategy=options.strategy, cache=False if options.no_cache else None
        )
        compile_s = time.perf_counter() - started
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
        max_relative_error=error,
        **figures(timings),
        export_s=export_s,
        compile_s=compile_s,
        strategy=artifact.manifest["strategy"],
        artifact_mb=size / 2**20,
    )


def figures(timings: Mapping[str, Timing]) -> dict[str, Any]:
    """The fields of a row that come from timings of "eager" and perhaps others."""
    eager = timings["eager"]
    found = {f"{name}_ms": 1e3 * timing.median for name, timing in timings.items()}
    for name in timings.keys() - {"eager"}:
        found[f"{name}_speedup"] = eager.median / timings[name].median
        found[f"{name}_best_speedup"] = eager.best / timings[name].best
    return found


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


def line(row: Row) -> str:
    """A row of the table as text."""
    name = row.model.ljust(NAME_WIDTH)
    if row.failure is not None:
        return f"{name}  {row.failure}"
    values = asdict(row)
    cells = (
        "-" if values[field] is None else format(values[field], form) for _, field, form in COLUMNS
    )
    return name + "".join(cell.rjust(WIDTH) for cell in cells)


def save(rows: Sequence[Row], options: argparse.Namespace) -> None:
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
