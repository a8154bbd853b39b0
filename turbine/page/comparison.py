"""Compare two runs: rows of dispatches, lines of the model and modules, matched by name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from turbine.page.explanation import Explanation, times_of_ops

# Their order in the program is part of the names of dispatches, and differs between versions.
_ORDER = re.compile(r"(dispatch)_\d+(?=_|$)")


@dataclass(frozen=True)
class Pair:
    """The milliseconds of something in two runs; None where a run lacks it."""

    kind: str  # "call", "dispatch", "line" or "module"
    name: str
    before: float | None
    after: float | None


def compare(before: Explanation, after: Explanation) -> list[Pair]:
    """The call, then all that takes time in either run, the greatest change first."""
    whole = Pair("call", after.title, before.milliseconds, after.milliseconds)
    tables: dict[str, Callable[[Explanation], Mapping[str, float]]] = {
        "dispatch": _by_dispatch,
        "line": times_of_lines,
        "module": times_of_modules,
    }
    pairs = [
        pair for kind, table in tables.items() for pair in _pairs(kind, table(before), table(after))
    ]
    return [whole, *sorted(pairs, key=lambda pair: -abs((pair.after or 0) - (pair.before or 0)))]


def _pairs(kind: str, before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[Pair]:
    for name in dict.fromkeys([*after, *before]):
        yield Pair(kind, name, before.get(name), after.get(name))


def _by_dispatch(explanation: Explanation) -> Mapping[str, float]:
    """Times by names without their order; several of one name have a number behind it."""
    times = {cost.name: cost.milliseconds for cost in explanation.costs}
    seen: Counter[str] = Counter()
    found = {}
    for name in sorted(times, key=_number):
        bare = _ORDER.sub(r"\1", name)
        seen[bare] += 1
        found[bare if seen[bare] == 1 else f"{bare} ({seen[bare]})"] = times[name]
    return found


def _number(name: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", name)]


def times_of_lines(explanation: Explanation) -> Mapping[str, float]:
    """Milliseconds of the innermost line of each op."""
    times: defaultdict[str, float] = defaultdict(float)
    for op, milliseconds in zip(explanation.stages.ops, times_of_ops(explanation), strict=True):
        if op.places and milliseconds:
            times[op.places[0]] += milliseconds
    return times


def times_of_modules(explanation: Explanation) -> Mapping[str, float]:
    """Milliseconds of the ops that each module's own forward calls."""
    times: defaultdict[str, float] = defaultdict(float)
    for op, milliseconds in zip(explanation.stages.ops, times_of_ops(explanation), strict=True):
        if op.module and milliseconds:
            times[op.module] += milliseconds
    return times
