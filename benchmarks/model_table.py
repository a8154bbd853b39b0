"""Judge and time architectures at real sizes: the rows of real_models.py in, docs/models.md out.

Each row runs in a process of its own with a limit of time: a crash is a row, not the end. It is
exported and compiled, anew each time, with float32 weights and with weights of 4 bits, compared
with eager and timed beside it, in turns. Figures go to a file in benchmarks/results, and as a table
to docs/models.md.

    python benchmarks/model_table.py --rows bert,vit --seconds 5
    python benchmarks/model_table.py --show      # the table of what was measured, in the page too
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import cpu_name, relative_error, write
from real_models import ROWS
from timing import calls_in, round_robin, warn_if_busy
from torch import Tensor
from torch.utils._pytree import tree_leaves

import turbine
from turbine import child_processes, config, errors, tables
from turbine.aot import ExportOutput
from turbine.coverage.report import to_markdown
from turbine.zoo.example import Example

RESULTS = Path(__file__).resolve().parent / "results"
PREFIX = "models-"  # of files of figures
PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
ERROR_LIMIT = 1e-4  # the largest difference from eager, relative to eager's largest value
BITS = 4
LONGEST_ROW = 900.0  # seconds
SHORTEST_TURN = 1e-3  # seconds
MOST_RUNNING = 2  # programs for each core that want to run, this one too; more is busy


@dataclass
class Figures:
    """What is known of a row; filled in as far as it comes."""

    parameters: int | None = None
    export_s: float | None = None
    compile_s: float | None = None
    bytes: int | None = None
    error: float | None = None
    packed_compile_s: float | None = None
    packed_bytes: int | None = None
    packed_error: float | None = None
    eager_ms: float | None = None
    artifact_ms: float | None = None
    packed_ms: float | None = None
    is_busy: bool = True  # whether other programs may have run too
    failure: str | None = None

    @property
    def ratio(self) -> float | None:
        return _quotient(self.eager_ms, self.artifact_ms)

    @property
    def packed_ratio(self) -> float | None:
        return _quotient(self.eager_ms, self.packed_ms)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    path = options.output or RESULTS / f"{PREFIX}{cpu_name()}-{torch.get_num_threads()}.json"
    rows = read(path)
    if not options.show:
        warn_if_busy()
        known = {name: row for name, row in rows.items() if options.times and row.failure is None}
        start = partial(measurer, options.seconds, torch.get_num_threads(), known)
        jobs = child_processes.run_jobs(start, options.rows, limit=LONGEST_ROW, lifetime=1)
        for name, answer in jobs:
            crashed = isinstance(answer, child_processes.Crash)
            rows[name] = Figures(failure=first_line(answer.reason)) if crashed else answer
            print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
            write(path, {name: asdict(row) for name, row in rows.items()})
    cells = to_cells(rows)
    print(tables.table(cells, right=range(2, len(cells[0]))))
    PAGE.write_text(renew(PAGE.read_text(), path, cells))
    return 0 if all(row.failure is None for row in rows.values()) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=names, default=list(ROWS), help="which (default: all)")
    parser.add_argument("--seconds", type=float, default=6.0, help="time spent on a row's calls")
    parser.add_argument("--times", action="store_true", help="of a known row measure only calls")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--output", type=Path, help="the file of the figures")
    options = parser.parse_args(arguments)
    for name in options.rows:
        if name not in ROWS:
            parser.error(errors.unknown("row", name, ROWS))
    return options


def names(text: str) -> list[str]:
    return text.split(",")


def measurer(
    seconds: float, threads: int, known: Mapping[str, Figures]
) -> Callable[[str], Figures]:
    """In a new process: what measures a row."""
    torch.set_num_threads(threads)
    return partial(measure, seconds=seconds, known=known)


def measure(name: str, seconds: float, known: Mapping[str, Figures]) -> Figures:
    """What becomes of a row, in this process; code of a known one may come from the cache."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        place = config.current().cache_dir if name in known else Path(folder) / "cache"
        try:
            with config.override(cache_dir=place):
                fill(figures, ROWS[name].build(), Path(folder), seconds)
        except Exception as error:
            figures.failure = f"{type(error).__name__}: {first_line(str(error))}"
    if name in known:
        old = known[name]
        times = {"export_s": old.export_s, "compile_s": old.compile_s}
        figures = replace(figures, **times, packed_compile_s=old.packed_compile_s)
    return figures


def fill(figures: Figures, example: Example, folder: Path, seconds: float) -> None:
    model, args, kwargs = example.model, example.args, example.kwargs
    figures.parameters = sum(weight.numel() for weight in model.parameters())
    expected = answer(model, example)
    figures.export_s, exported = timed(lambda: turbine.aot.export(model, args=args, kwargs=kwargs))
    path = folder / "model.turbine"
    figures.compile_s, artifact = timed(lambda: exported.compile(path))
    figures.bytes = path.stat().st_size
    figures.error = compare(answer(artifact, example), expected)
    rounded = turbine.aot.quantize(exported, bits=BITS)
    path = folder / "packed.turbine"
    figures.packed_compile_s, packed = timed(lambda: rounded.compile(path))
    figures.packed_bytes = path.stat().st_size
    figures.packed_error = compare(answer(packed, example), answer_unpacked(rounded, example))
    calls = {"eager_ms": model, "artifact_ms": artifact, "packed_ms": packed}
    turns = {key: partial(call, *args, **kwargs) for key, call in calls.items()}
    with torch.inference_mode():
        block = calls_in(SHORTEST_TURN, turns["eager_ms"])
        for key, timing in round_robin(turns, seconds=seconds, block=block).items():
            setattr(figures, key, 1e3 * timing.best)
    figures.is_busy = os.getloadavg()[0] > MOST_RUNNING * (os.cpu_count() or 1)
    error = max(figures.error, figures.packed_error)
    if error > ERROR_LIMIT:
        figures.failure = f"wrong by {error:.1e}"


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def answer(call: Callable[..., Any], example: Example) -> list[Tensor]:
    with torch.inference_mode():
        return [leaf.clone() for leaf in tree_leaves(call(*example.args, **example.kwargs))]


def answer_unpacked(output: ExportOutput, example: Example) -> list[Tensor]:
    """The quantized program in PyTorch: its ops on weights that were rounded and unpacked."""
    program = output.program
    by_name = [example.kwargs[name] for name in program.inputs] if example.kwargs else []
    tensors = [x for x in tree_leaves(example.args) if isinstance(x, Tensor)]
    given = dict(zip(program.inputs, [*tensors, *by_name], strict=True))
    held = {name: weight.tensor for name, weight in program.weights.items()}
    places = [node.name for node in program.graph.graph.nodes if node.op == "placeholder"]
    with torch.inference_mode():
        # A placeholder without a tensor is an argument that is not one.
        return tree_leaves(program.graph(*({**held, **given}.get(name) for name in places)))


def compare(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of the results, each relative to its largest value."""
    return max(relative_error(a, b) for a, b in zip(found, expected, strict=True))


def read(path: Path) -> dict[str, Figures]:
    """The rows that were measured before."""
    if not path.exists():
        return {}
    return {name: Figures(**row) for name, row in json.loads(path.read_text())["rows"].items()}


def to_cells(rows: Mapping[str, Figures]) -> list[list[str]]:
    """The table: what fails first, then what loses most."""
    heads = ["model", "call", "exports", "compiles", "difference", "eager ms", "x eager"]
    heads += ["MB", "export s", "compile s", "4-bit difference", "4-bit MB", "4-bit x", "why"]
    cells = [heads]
    for name, row in sorted(rows.items(), key=lambda item: rank(item[1])):
        cells.append([ROWS[name].like, ROWS[name].call, *to_texts(row)])
    has_failed = any(row.failure is not None for row in rows.values())
    return cells if has_failed else [line[:-1] for line in cells]


def rank(row: Figures) -> tuple[bool, float]:
    return row.failure is None, row.ratio or 0.0


def to_texts(row: Figures) -> list[str]:
    return [
        "no" if row.export_s is None else "yes",
        "no" if row.compile_s is None else "yes",
        text(row.error, "{:.1e}"),
        time_text(row, row.eager_ms, "{:.3g}"),
        time_text(row, row.ratio),
        text(row.bytes, "{:.0f}", 1e-6),
        text(row.export_s, "{:.1f}"),
        text(row.compile_s, "{:.1f}"),
        text(row.packed_error, "{:.1e}"),
        text(row.packed_bytes, "{:.0f}", 1e-6),
        time_text(row, row.packed_ratio),
        row.failure or "",
    ]


def time_text(row: Figures, number: float | None, form: str = "{:.2f}") -> str:
    """Times of a busy machine say little."""
    return "busy" if number is not None and row.is_busy else text(number, form)


def text(number: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if number is None else form.format(number * factor)


def renew(page: str, path: Path, cells: Sequence[Sequence[str]]) -> str:
    """The page with the table of the figures in a file."""
    about = json.loads(path.read_text())
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    machine = f"{path.stem.removeprefix(PREFIX)}, {about['threads']} threads; {versions}."
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    missing = [row.like for name, row in ROWS.items() if name not in about["rows"]]
    note = [f"Not measured yet: {'; '.join(missing)}.", ""] if missing else []
    lines = [machine, "", *note, *to_markdown(cells)]
    return "".join([before, BEGIN, *(f"{line}\n" for line in lines), END, after])


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def first_line(message: str) -> str:
    return (message.strip().splitlines() or [""])[0][:200]


if __name__ == "__main__":
    sys.exit(main())
