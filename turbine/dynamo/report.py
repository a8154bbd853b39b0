"""Report how the torch.compile backend compiles a function: graphs, parts and fallbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import torch

from turbine.dynamo import records
from turbine.dynamo.entry import backend
from turbine.dynamo.records import CompiledPart, GraphRecord, LeftOp
from turbine.page import html
from turbine.page.explanation import Explanation
from turbine.runtime.container import check_folder
from turbine.runtime.profiler import check_calls
from turbine.tables import table


@dataclass(frozen=True)
class PartReport:
    """One compiled part."""

    ops: dict[str, int]
    strategy: str
    seconds: float  # of compilation
    cached: bool
    mflop: float
    megabytes: float  # of arguments and results
    kernels: dict[str, int]  # of Turbine's library, in place of ops


@dataclass(frozen=True)
class GraphReport:
    """A graph of AOTAutograd: "forward", "backward" or "inference"."""

    kind: str
    parts: tuple[PartReport, ...]
    left: tuple[LeftOp, ...]  # ops that run in PyTorch
    updates: int  # calls of kernels that update inputs in place

    @property
    def ops_compiled(self) -> int:
        """The number of compiled ops."""
        return sum(sum(part.ops.values()) for part in self.parts)


@dataclass(frozen=True)
class CompileReport:
    """How a function was compiled; print it to read it."""

    graphs: tuple[GraphReport, ...]
    breaks: dict[str, int]  # why Dynamo ended a graph, and how often
    measure: Callable[[int], Explanation] = field(repr=False, compare=False)  # by calls

    def html(
        self, path: str | Path, *, calls: int = 10, before: Explanation | None = None
    ) -> Explanation:
        """Write a page with the lines of the model, what each became and what it costs.

        Args:
            path: the file to write.
            calls: how many calls to time.
            before: an earlier run to compare with.

        Returns:
            What the page shows; its `save` writes it for `turbine.page.explanation.load`.
        """
        check_calls(calls)
        check_folder(Path(path))
        explanation = self.measure(calls)
        html.save(path, explanation, before=before)
        return explanation

    @property
    def ops_compiled(self) -> int:
        """The number of compiled ops in all graphs."""
        return sum(graph.ops_compiled for graph in self.graphs)

    @property
    def left(self) -> tuple[LeftOp, ...]:
        """The ops of all graphs that run in PyTorch."""
        return tuple(op for graph in self.graphs for op in graph.left)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> CompileReport:
    """Compile a function or model again, call it once, and report how it was compiled.

    Args:
        function: a function, a module, or the result of torch.compile.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.

    The backend uses the current options: `with turbine.config.override(...)`.

    >>> import torch, turbine
    >>> report = turbine.explain(lambda x: (x.sin() + 1).sum(), torch.ones(3))
    >>> report.left
    ()
    """
    breaks = torch._dynamo.utils.counters["graph_break"]
    before = Counter(breaks)
    compiled, graphs = compile_anew(function, args, kwargs)
    ended = dict(Counter(breaks) - before)
    call = partial(compiled, *args, **kwargs)
    measure = partial(_measure, call, graphs, ended)
    return CompileReport(tuple(map(_graph_report, graphs)), ended, measure)


def _measure(
    call: Callable[[], object], graphs: Sequence[GraphRecord], breaks: dict[str, int], calls: int
) -> Explanation:
    from turbine.dynamo.measuring import explain_graphs  # needs this module

    return explain_graphs(call, graphs, breaks, calls)


def compile_anew(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[GraphRecord]]:
    """Compile a function and call it once; returns the compiled function and its graphs."""
    function = function._orig_mod if isinstance(function, _OPTIMIZED) else function
    with records.collect() as heard:
        # A new backend function, otherwise Dynamo would reuse code from its cache.
        anew = torch.compile(function, backend=partial(backend))
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
            anew(*args, **kwargs)
    for graph in heard:
        _wait(graph)
    return anew, [graph for graph in heard if not graph.is_dropped]


_OPTIMIZED = torch._dynamo.eval_frame.OptimizedModule


def _wait(graph: GraphRecord) -> None:
    """Wait for every part; a part that does not compile is split, and appends others."""
    for part in graph.parts:
        part.wait()


def _graph_report(graph: GraphRecord) -> GraphReport:
    parts, left = tuple(_part_reports(graph.parts)), tuple(graph.left)
    return GraphReport(graph.kind, parts, left, graph.updates)


def _part_reports(parts: Iterable[CompiledPart]) -> Iterable[PartReport]:
    for part in parts:
        made = part.compiled
        if made is not None:
            yield PartReport(
                dict(part.ops),
                made.strategy,
                made.seconds,
                made.cached,
                part.mflop,
                part.megabytes,
                dict(part.kernels),
            )


def _lines(report: CompileReport) -> Iterable[str]:
    compiled, left = report.ops_compiled, _count_left(report.left)
    yield f"{len(report.graphs)} graphs, {compiled} ops compiled, {left}"
    for reason, count in report.breaks.items():
        yield f"  graph break ({count}x): {reason.splitlines()[0]}"
    for number, graph in enumerate(report.graphs):
        updates = f"{graph.updates} updates in place, " if graph.updates else ""
        left = f"{updates}{_count_left(graph.left)}"
        yield f"graph {number}, {graph.kind}: {len(graph.parts)} parts, {left}"
        rows = [_part_row(index, part) for index, part in enumerate(graph.parts)]
        if rows:
            yield indent(table([_PART_HEAD, *rows]), "  ")
        if graph.left:
            yield indent(table([_LEFT_HEAD, *_left_rows(graph.left)]), "  ")


def _count_left(left: Sequence[LeftOp]) -> str:
    chosen = sum(op.is_chosen for op in left)
    calls = f"{chosen} library calls, " if chosen else ""
    return f"{calls}{len(left) - chosen} fallbacks"


_PART_HEAD = (
    "part",
    "ops",
    "strategy",
    "compiled in",
    "MFLOP",
    "MB in and out",
    "mostly",
    "kernels",
)
_LEFT_HEAD = ("in PyTorch", "times", "where", "why")


def _part_row(index: int, part: PartReport) -> tuple[str, ...]:
    mostly = most_common(part.ops)
    seconds = f"{part.seconds:.1f} s{' (cached)' if part.cached else ''}"
    count = str(sum(part.ops.values()))
    sizes = (f"{part.mflop:.1f}", f"{part.megabytes:.2f}")
    kernels = ", ".join(f"{name} {times}" for name, times in part.kernels.items())
    return (str(index), count, part.strategy, seconds, *sizes, mostly, kernels or "-")


def _left_rows(left: Sequence[LeftOp]) -> Iterable[tuple[str, ...]]:
    for op, count in Counter(left).most_common():
        yield (_short(op.op), str(count), op.where or "unknown", op.reason)


def most_common(ops: Mapping[str, int]) -> str:
    """The three ops that occur most often, as text."""
    return ", ".join(f"{_short(op)} {n}" for op, n in Counter(ops).most_common(3))


def _short(op: str) -> str:
    return op.removeprefix("aten.").removesuffix(".default")
