"""Profile a function under torch.compile: what its compiled parts and its PyTorch ops take."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import torch

from turbine.capture.traits import SCOPE
from turbine.dynamo.parts import PartModule
from turbine.dynamo.records import GraphRecord
from turbine.dynamo.report import compile_anew, most_common
from turbine.lower.body import user_line
from turbine.lower.importer import DEFAULT_NAME
from turbine.lower.weights import raw_bytes
from turbine.runtime import profiler
from turbine.runtime.entries import Entry
from turbine.runtime.parameters import save_archive
from turbine.tables import table


@dataclass(frozen=True)
class PartProfile:
    """A compiled part: how often a call runs it, and the time of its dispatches."""

    graph: str  # "forward", "backward" or "inference"
    ops: dict[str, int]
    lines: tuple[str, ...]  # of the user's code that most ops come from
    count: float
    milliseconds: float  # in one call, all runs together
    dispatches: tuple[profiler.Row, ...]


@dataclass(frozen=True)
class OpProfile:
    """An op that runs in PyTorch."""

    name: str
    count: float
    milliseconds: float


@dataclass(frozen=True)
class CompiledProfile:
    """Where the time of a compiled function goes; print it to read it."""

    milliseconds: float  # a call, from outside
    parts: tuple[PartProfile, ...]  # those that take longest first
    ops: tuple[OpProfile, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def profile(
    function: Callable[..., Any], *args: Any, calls: int = 10, **kwargs: Any
) -> CompiledProfile:
    """Compile a function or model anew, call it, and time its parts and its PyTorch ops.

    Args:
        function: a function, a module, or the result of torch.compile.
        args: positional arguments of the calls.
        calls: how many calls to time; each part's dispatches are timed as often.
        kwargs: keyword arguments of the calls.

    Artifacts have `turbine.runtime.profiler.profile` and `turbine profile`.

    >>> import torch, turbine
    >>> report = turbine.profile(torch.nn.Softplus(), torch.ones(64, 64), calls=2)
    >>> [part.count for part in report.parts]
    [1.0]
    """
    profiler.check_calls(calls)
    compiled, graphs = compile_anew(function, args, kwargs)
    measured = measure(partial(compiled, *args, **kwargs), graphs, calls)
    parts = [watch.report(calls) for watch in measured.watches]
    parts.sort(key=lambda part: -part.milliseconds)
    return CompiledProfile(1e3 * measured.seconds, tuple(parts), tuple(measured.ops))


@dataclass(frozen=True)
class Measured:
    """Calls of a compiled function: each part that ran, and the ops that PyTorch ran."""

    seconds: float  # a call
    watches: list[Watch]
    ops: list[OpProfile]


def measure(call: Callable[[], object], graphs: Sequence[GraphRecord], calls: int) -> Measured:
    """Time the parts of graphs while they are called."""
    call()
    with ExitStack() as stack:
        watches = [
            stack.enter_context(_watch(part, graph.kind))
            for graph in graphs
            for part in graph.parts
            if isinstance(part, PartModule) and part.compiled is not None
        ]
        seconds, ops = _seconds_of(call, calls), _time_ops(call, calls)
    return Measured(seconds, [watch for watch in watches if watch.args is not None], ops)


@dataclass
class Watch:
    """Times the calls of a part, and keeps the arguments of one."""

    part: PartModule
    graph: str
    count: int = 0
    seconds: float = 0.0
    args: Sequence[Any] | None = None

    def report(self, calls: int) -> PartProfile:
        # Calls were counted twice: while they were timed, and while PyTorch's profiler ran.
        count, seconds = self.count / (2 * calls), self.seconds / (2 * calls)
        rows = profiler.rows_of(self.observe(calls).events, calls, {})
        ops, lines = dict(self.part.ops), _lines_of(self.part)
        return PartProfile(self.graph, ops, lines, count, 1e3 * seconds, tuple(rows))

    def observe(self, calls: int) -> profiler.Observed:
        """Call the part alone with its arguments, in a process of IREE's."""
        assert self.args is not None
        return _observe(self.part, self.args, calls)


def _lines_of(part: PartModule) -> tuple[str, ...]:
    places = Counter(map(user_line, part.eager.graph.nodes))
    return tuple(place for place, _ in places.most_common(4) if place is not None)[:3]


@contextmanager
def _watch(part: PartModule, graph: str) -> Iterator[Watch]:
    watch, call = Watch(part, graph), part.wait()

    def timed(args: Sequence[Any]) -> Sequence[Any]:
        watch.args = args
        watch.count += 1
        started = time.perf_counter()
        results = call(args)
        watch.seconds += time.perf_counter() - started
        return results

    with part.calling(timed):
        yield watch


def _seconds_of(call: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def _time_ops(call: Callable[[], object], calls: int) -> list[OpProfile]:
    """The ops that PyTorch itself runs, those that take longest first."""
    with quiet_kineto(), torch.autograd.profiler.profile(use_kineto=False) as seen:
        for _ in range(calls):
            call()
    found = [
        OpProfile(one.key, one.count / calls, one.self_cpu_time_total / 1e3 / calls)
        for one in seen.key_averages()
        if one.key.startswith("aten::")
    ]
    return sorted(found, key=lambda op: -op.milliseconds)


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Raise the log level of Kineto, which PyTorch's profiler starts: it prints to stderr."""
    before = os.environ.get(_KINETO)
    os.environ[_KINETO] = before or "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_KINETO]


_KINETO = "KINETO_LOG_LEVEL"


def _observe(part: PartModule, args: Sequence[Any], calls: int) -> profiler.Observed:
    assert part.compiled is not None
    assert part.code is not None
    frozen, passed = part.code.split(args)
    slots = zip(part.code.flat.inputs, passed, strict=True)
    # The code takes axes in the order of memory.
    flat = [arg if slot.order is None else arg.permute(slot.order) for slot, arg in slots]
    with tempfile.TemporaryDirectory(prefix="turbine-profile-") as folder:
        code = Path(folder) / "part.vmfb"
        code.write_bytes(part.compiled.data)
        archives = {}
        if frozen:
            entries = [Entry(name, raw_bytes(one).data) for name, one in frozen.items()]
            archives[SCOPE] = Path(folder) / "weights.irpa"
            save_archive(archives[SCOPE], entries)
        run = profiler.Run(code, part.driver, DEFAULT_NAME, flat, archives)
        return profiler.observe(run, calls, Path(folder))


_SHOWN = 5  # dispatches of a part, and ops


def _lines(report: CompiledProfile) -> Iterator[str]:
    inside = sum(part.milliseconds for part in report.parts)
    yield (
        f"{report.milliseconds:.3g} ms a call, {inside:.3g} ms of it in {len(report.parts)} "
        "compiled parts"
    )
    for part in report.parts:
        yield f"part of the {part.graph} graph: {part.milliseconds:.3g} ms in {part.count:g} runs"
        yield f"  mostly {most_common(part.ops)}"
        if part.lines:
            yield f"  at {', '.join(part.lines)}"
        shown = part.dispatches[:_SHOWN]
        cells = [[row.name, f"{row.count:g}", f"{row.milliseconds:.3f}"] for row in shown]
        yield indent(table([["dispatch", "runs", "ms"], *cells], right=(1, 2)), "  ")
        if rest := len(part.dispatches) - len(shown):
            yield f"  and {rest} more dispatches"
    ops = report.ops[:_SHOWN]
    if ops:
        yield "in PyTorch"
        cells = [[op.name, f"{op.count:g}", f"{op.milliseconds:.3f}"] for op in ops]
        yield indent(table([["op", "runs", "ms"], *cells], right=(1, 2)), "  ")
