"""What is known of a program and what it costs: all outputs of `turbine explain` come from this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from turbine import errors
from turbine.page import decoding
from turbine.page.stages import Stages
from turbine.tables import table


@dataclass(frozen=True)
class Cost:
    """A dispatch: its runs and time in a call, and the rates that it reached."""

    name: str
    count: float
    milliseconds: float
    share: float  # of the time of all dispatches
    threads: float
    gflops: float | None = None
    gbytes: float | None = None


@dataclass(frozen=True)
class Fallback:
    """An op that runs in PyTorch."""

    op: str
    reason: str
    place: str | None
    count: int
    is_chosen: bool = False  # it could be compiled, but PyTorch's library is faster


@dataclass(frozen=True)
class PyTorchOp:
    """The time of an op that PyTorch runs."""

    name: str
    count: float
    milliseconds: float


@dataclass(frozen=True)
class Event:
    """Something that took time in one of the calls."""

    name: str
    kind: str  # "dispatch", "copy", "execute" ...
    start: float  # microseconds since the first event
    duration: float
    busy: float = 0.0  # microseconds of all threads together


@dataclass(frozen=True)
class Memory:
    """The bytes that results and intermediate values took from this time on."""

    time: float  # microseconds since the first event
    bytes: int


@dataclass(frozen=True)
class Peak:
    """What this machine can do in a second, measured."""

    operations: float
    bandwidth: float  # bytes


@dataclass(frozen=True)
class Explanation:
    """A program, what it became, and what it costs."""

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    milliseconds: float | None = None  # a call, from outside
    stages: Stages = field(default_factory=Stages)
    costs: tuple[Cost, ...] = ()  # those that take longest first
    fallbacks: tuple[Fallback, ...] = ()
    breaks: dict[str, int] = field(default_factory=dict)  # why Dynamo ended a graph
    pytorch: tuple[PyTorchOp, ...] = ()
    events: tuple[Event, ...] = ()
    calls: int = 0  # in whose order the events are; 0 if parts of a program were called alone
    memory: tuple[Memory, ...] = ()
    peak: Peak | None = None
    missing: tuple[str, ...] = ()  # what could not be shown, and how to get it

    def text(self, most: int = 20) -> str:
        """The facts, and a row for each dispatch, `most` of them."""
        rows = [(cost.name, f"{cost.milliseconds:.3f}", f"{cost.share:.0%}") for cost in self.costs]
        facts = table([(name, fact) for name, fact in self.facts.items() if fact])
        costs = table([("dispatch", "ms", "share"), *rows[:most]], right=(1, 2))
        return f"{facts}\n\n{costs}"

    def save(self, path: str | Path) -> None:
        """Write all of it as JSON, which `load` and `turbine explain --compare` read."""
        Path(path).write_text(decoding.encode(self))


def load(path: str | Path) -> Explanation:
    """What `Explanation.save` wrote."""
    try:
        return decoding.decode(Explanation, Path(path).read_text())
    except (OSError, ValueError) as error:
        raise errors.ArgumentError(
            f"{path} is not an explanation: {error}",
            hint="give a .json file that `turbine explain --json` wrote",
        ) from error


def times_of_ops(explanation: Explanation) -> list[float]:
    """Milliseconds of each op.

    The time of a dispatch is split among its ops in proportion to their operations.
    """
    ops = explanation.stages.ops
    times = [0.0] * len(ops)
    for cost in explanation.costs:
        for number, share in shares_of(explanation, cost.name):
            times[number] += share * cost.milliseconds
    return times


def shares_of(explanation: Explanation, name: str) -> Iterator[tuple[int, float]]:
    """The ops of a dispatch, and the part of its time that each has."""
    dispatch = explanation.stages.dispatches.get(name)
    numbers = [] if dispatch is None else dispatch.ops
    work = [explanation.stages.ops[number].operations for number in numbers]
    total = sum(work)
    for number, operations in zip(numbers, work, strict=True):
        yield number, operations / total if total else 1 / len(numbers)
