"""`turbine bench`: an artifact in, the time its calls take out."""

from __future__ import annotations

import json as jsons
import statistics
import time
from collections.abc import Callable, Sequence
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
    json: Annotated[bool, "print the figures as JSON"] = False,
) -> int:
    """Time the calls of a compiled model.

    Inputs are given as for `turbine run`.

    example:
      turbine bench lenet.turbine --seconds 1
    """
    from turbine.runtime.artifact import load

    if seconds < 0 or warmup < 0:
        raise errors.ConfigError(f"cannot measure: {seconds=} {warmup=}", hint="use 0 or more")
    with progress(f"timing {artifact.name}"):
        loaded = load(artifact, weights=weights)
        program = loaded.function(function)
        args, kwargs = arguments(program.signature, input, size)
        timings = measure(lambda: program(*args, **kwargs), seconds=seconds, warmup=warmup)
    facts: dict[str, str | float] = {"artifact": str(artifact), "driver": loaded.driver}
    facts |= summary(timings)
    print(jsons.dumps(facts, indent=2) if json else _text(facts))
    return 0


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


def _cell(value: str | float) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if value >= 100 else f"{value:.4g}"
