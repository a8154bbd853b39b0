"""`turbine coverage`: op samples or architectures in, a verdict on each out."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turbine import errors

if TYPE_CHECKING:
    from turbine.coverage.front_door import FrontDoor
    from turbine.coverage.verdicts import Judged

_ALL = "all"
_PERIOD = 10.0  # seconds between lines of progress


def show_coverage(
    *,
    ops: Annotated[
        str, "a regular expression; only ops, or architectures, whose name it finds"
    ] = "",
    seed: Annotated[int, "seed of the samples, and of the order for --seconds"] = 0,
    seconds: Annotated[float | None, "stop after this time; the order is random"] = None,
    samples: Annotated[int, "how many different calls of each op"] = 3,
    forms: Annotated[
        str, "forms of arguments to repeat each sample with, separated by commas"
    ] = _ALL,
    export: Annotated[bool, "test exports instead of torch.compile"] = False,
    architectures: Annotated[bool, "test exports of models of the transformers package"] = False,
    output: Annotated[Path | None, "page whose section is written with the table", "-o"] = None,
    jobs: Annotated[int, "processes to run in parallel"] = os.cpu_count() or 1,
) -> int:
    """Run PyTorch's own op samples forward and backward and compare with eager.

    Samples are run again with their arguments in other forms: transposed, spread (every second
    element of a longer row), expanded, negated and conjugated (when they are read), mixed (each
    argument in one of these) and dynamic (with a size that is a symbol). Only failures count.

    With --export, samples are exported with the sizes they have and with dynamic sizes (Dim.AUTO
    for every size above 1), and run forward.

    With --architectures, tiny models of the transformers package are exported with a static and
    with a dynamic batch size.

    Prints a row for each one that is not wholly compiled, then how many there are of each kind.
    With --output, the section of the page for this test is replaced and the others are kept. The
    exit code is 1 if one fails.

    example:
      turbine coverage --ops softsign --samples 1
    """
    from turbine.coverage import report, sweep

    if samples < 1 or jobs < 1:
        raise errors.ConfigError(f"nothing to do: {samples=} {jobs=}", hint="use 1 or more")
    door = _choose_door(forms, export=export, architectures=architectures)
    names = _filter_names(door.items(), ops, door.noun)
    if seconds is not None:
        names = sweep.shuffle(names, seed)
    found = sweep.sweep(names, door, seed=seed, samples=samples, jobs=jobs, seconds=seconds)
    judged = sorted(_with_progress(found, len(names), door.noun), key=lambda item: item.name)
    if output is not None:
        page = output.read_text() if output.exists() else ""
        output.write_text(report.update_page(page, judged, door))
    print(report.to_text(judged, door))
    return int(any(item.fails for item in judged))


def _choose_door(forms: str, *, export: bool, architectures: bool) -> FrontDoor:
    if not export and not architectures:
        return _compile_door(forms)
    if forms != _ALL:
        raise errors.ConfigError(
            "--forms with exports", hint="exports are tested with static and dynamic sizes"
        )
    if export and architectures:
        raise errors.ConfigError("--export with --architectures", hint="use one of them")
    from turbine.coverage import architectures as models
    from turbine.coverage import exported

    return models.FRONT_DOOR if architectures else exported.FRONT_DOOR


def _compile_door(forms: str) -> FrontDoor:
    from turbine.coverage.compiled import make_front_door
    from turbine.coverage.forms import FORMS

    chosen = list(FORMS) if forms == _ALL else [name for name in forms.split(",") if name]
    for name in chosen:
        if name not in FORMS:
            raise errors.ConfigError(errors.unknown("form of arguments", name, [*FORMS, _ALL]))
    return make_front_door(chosen)


def _filter_names(names: Iterable[str], pattern: str, noun: str) -> list[str]:
    try:
        found = [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise errors.ConfigError(
            f"not a regular expression: {pattern!r} ({error})",
            hint="put a backslash before ( [ * + ? where the character itself is meant",
        ) from error
    if not found:
        raise errors.ConfigError(
            f"no {noun} has {pattern!r} in its name",
            hint="use a name from docs/coverage.md, such as nn.functional.relu or bert",
        )
    return found


def _with_progress(judged: Iterable[Judged], total: int, noun: str) -> Iterator[Judged]:
    said = time.monotonic()
    for count, item in enumerate(judged, start=1):
        yield item
        if item.fails:
            print(f"{item.name} fails", file=sys.stderr, flush=True)
        if time.monotonic() - said > _PERIOD:
            said = time.monotonic()
            print(f"{count} of {total} {noun}s ... {item.name}", file=sys.stderr, flush=True)
