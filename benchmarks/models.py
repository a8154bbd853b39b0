"""Time models and training steps in eager PyTorch, its rivals and Turbine.

Every row runs in a process of its own, where the systems take turns. The table has eager's median
time and, for each system, how many times faster it is; the worst rows of Turbine come first. The
figures go to benchmarks/results/<cpu>-<threads>.json, beside those of earlier runs, and a plot of
them to docs/.

    python benchmarks/models.py --rows mlp,resnet18 --systems inductor,artifact --seconds 5
    python benchmarks/models.py --show      # the table and the plot of what was measured
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from plot import draw
from systems import OURS, SYSTEMS, NotTaken
from timing import Call, calls_in, round_robin, warn_if_busy
from torch import Tensor
from torch.utils._pytree import tree_leaves
from workloads import ROWS, TINY, AmongEager, Workload

import turbine
from turbine import errors
from turbine.tables import table

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = Path(__file__).resolve().parents[1] / "docs"
# The largest difference from eager, relative to eager's largest value.
ERROR_LIMITS = {torch.bfloat16: 3e-2, torch.float16: 4e-3}
ERROR_LIMIT = 1e-4
SHORTEST_TURN = 1e-3  # seconds
LONGEST_ROW = 1800  # seconds: a system that hangs ends its row, not the run


@dataclass(frozen=True)
class Figure:
    """What one system did with a row; seconds of a call."""

    median: float | None = None
    best: float | None = None
    first: float | None = None  # compiling and one call
    error: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table: the figure of every system that was asked."""

    name: str
    figures: Mapping[str, Figure]

    def speedup(self, system: str) -> float | None:
        """How many times faster than eager."""
        ours, eager = self.figures.get(system), self.figures["eager"]
        if ours is None or ours.median is None or eager.median is None:
            return None
        return eager.median / ours.median

    @property
    def worst(self) -> float:
        """The least speedup of Turbine; 0 where it failed."""
        given = [self.speedup(system) or 0.0 for system in OURS if system in self.figures]
        return min(given, default=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.only is not None:
        print(json.dumps(measure(options.only, options)))
        return 0
    path = options.output or RESULTS / f"{cpu_name()}-{torch.get_num_threads()}.json"
    rows = read(path)
    if not options.show:
        warn_if_busy()
        for name in options.rows:
            print(f"{name} ...", file=sys.stderr, flush=True)
            figures = {**rows[name].figures} if name in rows else {}
            rows[name] = Row(name, figures | measure_in_process(name, options))
            save(path, rows)
    print(report(list(rows.values())))
    plot = path.with_suffix(".svg") if options.output else DOCS / f"performance-{path.stem}.svg"
    draw(plot, {name: speedups(row) for name, row in rows.items()})
    print(f"figures are in {path}", file=sys.stderr)
    return 0 if all(row.worst for row in rows.values()) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=names, help="which rows (default: all)")
    parser.add_argument("--systems", type=names, help=f"of {', '.join(SYSTEMS)} (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="time spent on the calls of a row"
    )
    parser.add_argument("--threads", type=int, help="as many threads for every system")
    parser.add_argument("--no-cache", action="store_true", help="compile even what is cached")
    parser.add_argument("--tiny", action="store_true", help="the rows at test size")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--output", type=Path, help="the file of the figures")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # a row, in this process
    options = parser.parse_args(arguments)
    catalog = TINY if options.tiny else ROWS
    options.rows = options.rows or list(catalog)
    options.systems = ["eager", *(options.systems or SYSTEMS)]
    for kind, given, known in (
        ("row", options.rows, catalog),
        ("system", options.systems, SYSTEMS),
    ):
        for name in given:
            if name not in known:
                parser.error(errors.unknown(kind, name, known))
    return options


def names(text: str) -> list[str]:
    return text.split(",")


def measure_in_process(name: str, options: argparse.Namespace) -> dict[str, Figure]:
    """The figures of a row; whatever goes wrong with it is its result, and the next row follows."""
    command = [sys.executable, __file__, "--only", name, "--systems", ",".join(options.systems)]
    command += ["--seconds", str(options.seconds), "--threads", str(torch.get_num_threads())]
    command += ["--tiny"] * options.tiny
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TURBINE_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        environment = os.environ | caches if options.no_cache else os.environ
        try:
            ended = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, timeout=LONGEST_ROW
            )
        except subprocess.TimeoutExpired:
            return dict.fromkeys(options.systems, Figure(failure="took too long"))
    if ended.returncode != 0:
        failure = Figure(failure=f"the process ended with {ended.returncode}")
        return dict.fromkeys(options.systems, failure)
    figures = json.loads(ended.stdout.splitlines()[-1])
    return {system: Figure(**figure) for system, figure in figures.items()}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What each system does with a row, in this process."""
    build = (TINY if options.tiny else ROWS)[name]
    figures: dict[str, Figure] = {}
    calls: dict[str, Call] = {}
    results: dict[str, list[Tensor]] = {}
    # Ours before the rivals: Turbine lets Dynamo trace recurrent layers, and what Dynamo left to
    # PyTorch before stays there for every backend.
    for system in sorted(options.systems, key=lambda name: name not in ("eager", *OURS)):
        torch.manual_seed(0)
        try:
            started = time.perf_counter()
            calls[system] = prepare(system, build())
            tree_leaves(calls[system]())
            first = time.perf_counter() - started
            results[system] = [leaf.clone() for leaf in tree_leaves(calls[system]())]
        except NotTaken:
            continue
        except Exception as error:
            if system == "eager":
                raise
            line = (str(error).strip().splitlines() or [""])[0]
            figures[system] = Figure(failure=f"{type(error).__name__}: {line}"[:200])
            calls.pop(system, None)
            continue
        figures[system] = check(Figure(first=first), results[system], results["eager"])
    timed = {system: call for system, call in calls.items() if figures[system].failure is None}
    block = calls_in(SHORTEST_TURN, timed["eager"])
    for system, timing in round_robin(timed, seconds=options.seconds, block=block).items():
        figures[system] = replace(figures[system], median=timing.median, best=timing.best)
    return {system: asdict(figure) for system, figure in figures.items()}


def prepare(system: str, workload: Workload) -> Call:
    if not isinstance(workload, AmongEager):
        return SYSTEMS[system](workload)
    call, eager = SYSTEMS[system](workload.example), workload.eager

    def both() -> object:
        eager()
        return call()

    return both


def check(figure: Figure, found: list[Tensor], expected: list[Tensor]) -> Figure:
    """The figure with its error; one that is too large, or not a number, is a failure."""
    error = max(relative_error(a, b) for a, b in zip(found, expected, strict=True))
    limit = max(ERROR_LIMITS.get(one.dtype, ERROR_LIMIT) for one in expected)
    failure = None if error <= limit else f"wrong by {error:.1e}"
    return replace(figure, error=error, failure=failure)


def relative_error(found: Tensor, expected: Tensor) -> float:
    largest = expected.double().abs().max().item()
    return (found.double() - expected.double()).abs().max().item() / (largest or 1.0)


def report(rows: Sequence[Row]) -> str:
    """The table, the rows where Turbine is slowest first, with geometric means below."""
    systems = [system for system in SYSTEMS if any(system in row.figures for row in rows)]
    lines = [["row", "eager ms", *(f"{system} x" for system in systems[1:])]]
    for row in sorted(rows, key=lambda row: row.worst):
        median = row.figures["eager"].median
        ratios = [ratio_text(row, system) for system in systems[1:]]
        lines.append([row.name, "-" if median is None else f"{1e3 * median:.3g}", *ratios])
    for title, is_training in (("geometric mean, inference", False), ("training", True)):
        means = [mean_text(rows, system, is_training) for system in systems[1:]]
        lines.append([title, "", *means])
    failures = [
        f"{row.name}, {system}: {figure.failure}"
        for row in rows
        for system, figure in row.figures.items()
        if figure.failure
    ]
    return "\n".join([table(lines, right=range(1, len(lines[0]))), *failures])


def ratio_text(row: Row, system: str) -> str:
    figure, speedup = row.figures.get(system), row.speedup(system)
    if speedup is not None:
        return f"{speedup:.2f}"
    return "fails" if figure is not None and figure.failure else "-"


def mean_text(rows: Sequence[Row], system: str, is_training: bool) -> str:
    """Over the rows that the system could take."""
    given = [row.speedup(system) for row in rows if row.name.startswith("train_") == is_training]
    logarithms = [log(speedup) for speedup in given if speedup]
    return f"{exp(fmean(logarithms)):.2f}" if logarithms else "-"


def speedups(row: Row) -> dict[str, float]:
    return {s: x for s in SYSTEMS if s != "eager" and (x := row.speedup(s)) is not None}


def cpu_name() -> str:
    """This machine's CPU as a file name: "neoverse-n1"."""
    listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"^Model name:\s+(.+)$", listed, re.MULTILINE)
    name = found[1] if found else platform.machine()
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def read(path: Path) -> dict[str, Row]:
    """The rows that were measured before."""
    if not path.exists():
        return {}
    return {
        name: Row(name, {system: Figure(**figure) for system, figure in figures.items()})
        for name, figures in json.loads(path.read_text())["rows"].items()
    }


def save(path: Path, rows: Mapping[str, Row]) -> None:
    """Write all rows so far: an interrupted run keeps what it measured."""
    write(
        path,
        {
            name: {system: asdict(figure) for system, figure in row.figures.items()}
            for name, row in sorted(rows.items())
        },
    )


def write(path: Path, rows: Mapping[str, Any]) -> None:
    """A file of figures, with the machine and the versions that they are of."""
    written = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "versions": {
            "turbine": turbine.__version__,
            "torch": torch.__version__,
            "iree": version("iree-base-runtime"),
        },
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
