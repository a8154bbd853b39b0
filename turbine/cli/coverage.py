"""`turbine coverage`: PyTorch's own op samples in, what the backend makes of each op out."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turbine import errors
from turbine.tables import table

if TYPE_CHECKING:
    from turbine.coverage.verdicts import Judged, Verdict

_PERIOD = 10.0  # seconds between lines of progress
_FAMILIES = ("fft", "linalg", "nn.functional", "special", "masked", "signal")
_REST = "others"


def show_coverage(
    *,
    ops: Annotated[str, "a regular expression; only ops whose name it finds"] = "",
    seed: Annotated[int, "of the samples' numbers, and of the slice that --seconds takes"] = 0,
    seconds: Annotated[float | None, "judge ops in random order for so long, not all"] = None,
    samples: Annotated[int, "calls of each op, unlike each other"] = 3,
    forms: Annotated[str, "of arguments, with commas between: each sample again in each"] = "all",
    output: Annotated[Path | None, "write the page with the whole table there", "-o"] = None,
    jobs: Annotated[int, "processes that judge at once"] = os.cpu_count() or 1,
) -> int:
    """Run PyTorch's own op samples forward and backward and compare with eager.

    Samples are run again with their arguments in other forms: transposed, spread (every second
    element of a longer row), expanded, negated and conjugated (when they are read), mixed (each
    argument in one of these) and dynamic (with a size that is a symbol). Only failures count.

    Prints a row for each op that is not wholly compiled, then how many there are of each kind.
    The exit code is 1 if an op fails.

    example:
      turbine coverage --ops softsign --samples 1
    """
    from turbine.coverage import samples as op_samples
    from turbine.coverage import sweep
    from turbine.coverage.forms import FORMS

    if samples < 1 or jobs < 1:
        raise errors.ConfigError(f"nothing to do: {samples=} {jobs=}", hint="use 1 or more")
    names = _matching(op_samples.ops(), ops)
    if seconds is not None:
        names = sweep.shuffle(names, seed)
    chosen = _forms(forms, list(FORMS))
    found = sweep.sweep(names, seed=seed, samples=samples, forms=chosen, jobs=jobs, seconds=seconds)
    judged = sorted(_with_progress(found, len(names)), key=lambda item: item.name)
    if output is not None:
        output.write_text(page(judged))
    print(_text(judged))
    return int(any(item.fails for item in judged))


def _forms(text: str, known: Sequence[str]) -> Sequence[str]:
    chosen = known if text == "all" else [name for name in text.split(",") if name]
    for name in chosen:
        if name not in known:
            raise errors.ConfigError(errors.unknown("form of arguments", name, [*known, "all"]))
    return chosen


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    try:
        found = [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise errors.ConfigError(f"not a regular expression: {pattern!r} ({error})") from error
    if not found:
        raise errors.ConfigError(f"no op has {pattern!r} in its name")
    return found


def _with_progress(judged: Iterable[Judged], total: int) -> Iterator[Judged]:
    said = time.monotonic()
    for count, item in enumerate(judged, start=1):
        yield item
        if item.fails:
            print(f"{item.name} fails", file=sys.stderr, flush=True)
        if time.monotonic() - said > _PERIOD:
            said = time.monotonic()
            print(f"{count} of {total} ops ... {item.name}", file=sys.stderr, flush=True)


def _text(judged: Sequence[Judged]) -> str:
    rows = [
        (item.name, way, verdict.status, verdict.reason)
        for item in judged
        for way, verdict in (("forward", item.forward), ("backward", item.backward))
        if verdict.status not in ("compiled", "free", "no gradient")
    ]
    listing = f"{table([('op', 'way', 'status', 'why'), *rows])}\n\n" if rows else ""
    return listing + table(_counts(judged), right=range(1, 99))


def _counts(judged: Sequence[Judged]) -> list[tuple[str, ...]]:
    from turbine.coverage.verdicts import STATUSES

    ways = {"forward": [j.forward for j in judged], "backward": [j.backward for j in judged]}
    rows: list[tuple[str, ...]] = [("", *STATUSES, "share")]
    for way, verdicts in ways.items():
        counts = Counter(verdict.status for verdict in verdicts)
        rows.append((way, *(str(counts[s]) for s in STATUSES), f"{share(verdicts):.1%}"))
    return rows


def share(verdicts: Iterable[Verdict]) -> float:
    """How many of the ops that PyTorch traces are wholly compiled."""
    from turbine.coverage.verdicts import COMPILED, FREE, NO_GRADIENT, NOT_TRACED

    statuses = [v.status for v in verdicts if v.status not in (NOT_TRACED, NO_GRADIENT)]
    return sum(s in (COMPILED, FREE) for s in statuses) / max(len(statuses), 1)


def page(judged: Sequence[Judged]) -> str:
    """The table for the docs, as Markdown."""
    return "\n".join([*_head(judged), *_families(judged), *_reasons(judged)]) + "\n"


def _head(judged: Sequence[Judged]) -> Iterator[str]:
    import torch

    version = torch.__version__.partition("+")[0]
    yield "# Coverage\n"
    yield f"The {len(judged)} ops of PyTorch {version}'s own samples (`op_db`) under"
    yield '`torch.compile(backend="turbine")`, compared with eager in values, dtypes, shapes and'
    yield "strides. Made by `make coverage`.\n"
    yield "- compiled: every op of its graphs is compiled code, in every sample"
    yield "- free: only views and fills, nothing to compile"
    yield "- partly, falls back: the right answer, with some or all of the ops run by PyTorch"
    yield "- random: draws random numbers, which PyTorch does; shapes are compared"
    yield "- not traced: PyTorch's own `aot_eager` backend does not take it as one graph either"
    yield "- share: compiled or free, of all that PyTorch traces (random ones included)\n"
    yield from _markdown(_counts(judged))


def _families(judged: Sequence[Judged]) -> Iterator[str]:
    families: defaultdict[str, list[Judged]] = defaultdict(list)
    for item in judged:
        families[_family(item.name)].append(item)
    for family in (*_FAMILIES, _REST):
        if families[family]:
            yield f"\n## {family}\n"
            yield from _markdown([("op", "forward", "backward"), *map(_row, families[family])])


def _family(name: str) -> str:
    return next((family for family in _FAMILIES if name.startswith(f"{family}.")), _REST)


def _row(item: Judged) -> tuple[str, ...]:
    return f"`{item.name}`", item.forward.status, item.backward.status


def _reasons(judged: Sequence[Judged]) -> Iterator[str]:
    """What keeps ops from being compiled, most frequent first."""
    concerned: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for item in judged:
        for verdict in (item.forward, item.backward):
            if verdict.status in ("partly", "falls back"):
                for reason in verdict.reason.split("; "):
                    concerned[_shortened(reason)][item.name] = None
    rows = [
        (reason, str(len(names)), " ".join(f"`{name}`" for name in names))
        for reason, names in sorted(concerned.items(), key=lambda row: (-len(row[1]), row[0]))
    ]
    yield "\n## What runs in PyTorch, and why\n"
    yield from _markdown([("why", "ops", "which"), *rows])


def _shortened(reason: str) -> str:
    """One line that holds for every shape."""
    short = re.sub(r"(the compiler refused it).*", r"\1", reason, flags=re.S)
    return short.replace("|", "/").strip()


def _markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in body:
        yield f"| {' | '.join(row)} |"
