"""`turbine bench`: an artifact in, the time its calls take out."""

from __future__ import annotations

import json as jsons
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from turbine import errors
from turbine.cli.arguments import arguments
from turbine.cli.options import Assignment
from turbine.progress import progress
from turbine.tables import table


def bench_artifact(
    artifact: Annotated[Path, "file that `turbine compile` wrote"],
    *,
    input: Annotated[tuple[str, ...], "an input: x.npy, x.npz, 8x3xf32 or 8x3xf32=2.5", "-i"] = (),
    function: Annotated[str | None, "which entry point, if there are several", "-f"] = None,
    size: Annotated[tuple[Assignment, ...], "a dynamic size of generated inputs, NAME=VALUE"] = (),
    weights: Annotated[Path | None, "an archive to use in place of the artifact's weights"] = None,
    seconds: Annotated[float, "how long to measure"] = 2.0,
    warmup: Annotated[int, "calls before the clock starts"] = 3,
    compare: Annotated[str | None, "what else to time: eager,inductor,onnxruntime"] = None,
    model: Annotated[str | None, "the model for --compare, as `turbine compile` takes it"] = None,
    json: Annotated[bool, "print the figures as JSON"] = False,
) -> int:
    """Time the calls of a compiled model.

    Inputs are given as for `turbine run`. With --compare the model runs in other systems too,
    which take turns; artifacts of `turbine compile` say which model it was. The exit code is 1 if
    one of them cannot run it.

    example:
      turbine bench lenet.turbine --seconds 1
    """
    from turbine.runtime.artifact import load

    if seconds < 0 or warmup < 0:
        raise errors.ConfigError(f"cannot measure: {seconds=} {warmup=}", hint="use 0 or more")
    with progress(f"loading {artifact.name}"):
        loaded = load(artifact, weights=weights)
        program = loaded.function(function)
        args, kwargs = arguments(program.signature, input, size)
    facts: dict[str, str | float] = {"artifact": str(artifact), "driver": loaded.driver}
    calls: dict[str, Callable[[], object]] = {"artifact": lambda: program(*args, **kwargs)}
    if compare is not None:
        from turbine.cli import comparison

        source = comparison.source_of(loaded.manifest["provenance"], model)
        calls = comparison.calls(compare.split(","), source, program, args, kwargs)
    with progress(f"timing {artifact.name}"):
        timings = measure_in_turns(calls, seconds=seconds, warmup=warmup)
    rows = {name: summary(times) for name, times in timings.items()}
    if compare is None:
        facts |= rows["artifact"]
        print(jsons.dumps(facts, indent=2) if json else _text(facts))
        return 0
    print(jsons.dumps({**facts, "systems": rows}, indent=2) if json else _table(rows))
    return 0 if len(rows) == 1 + len(compare.split(",")) else 1


def measure(call: Callable[[], object], *, seconds: float, warmup: int) -> list[float]:
    """The time of each call within `seconds`, and of at least one call."""
    for _ in range(warmup):
        call()
    timings: list[float] = []
    end = time.perf_counter() + seconds
    while not timings or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        timings.append(time.perf_counter() - started)
    return timings


def measure_in_turns(
    calls: Mapping[str, Callable[[], object]], *, seconds: float, warmup: int
) -> dict[str, list[float]]:
    """The times of each call, `seconds` for each; several take turns, as a machine varies."""
    rounds = 1 if len(calls) == 1 else _ROUNDS
    timings: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            timings[name] += measure(call, seconds=seconds / rounds, warmup=warmup)
    return timings


_ROUNDS = 5


def summary(timings: Sequence[float]) -> dict[str, float]:
    """Summary statistics of the times."""
    ordered = sorted(timings)
    return {
        "calls": len(ordered),
        "median_ms": statistics.median(ordered) * 1e3,
        "min_ms": ordered[0] * 1e3,
        "p90_ms": ordered[(len(ordered) * 9 - 1) // 10] * 1e3,
        "calls_per_second": len(ordered) / sum(ordered),
    }


def _text(facts: dict[str, str | float]) -> str:
    cells = [_cell(value) for value in facts.values()]
    return table([list(facts), cells], right=range(2, len(cells)))


def _table(rows: Mapping[str, dict[str, float]]) -> str:
    """A row for each system; the last column is its time over the artifact's."""
    ours = rows["artifact"]["median_ms"]
    cells = [["system", *rows["artifact"], "times ours"]]
    for name, row in rows.items():
        ratio = f"{row['median_ms'] / ours:.2f}"
        cells.append([name, *(_cell(value) for value in row.values()), ratio])
    return table(cells, right=range(1, len(cells[0])))


def _cell(value: str | float) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if value >= 100 else f"{value:.4g}"
