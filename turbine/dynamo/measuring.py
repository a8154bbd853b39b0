"""Explain a function under torch.compile: the stages of its parts, what they cost, fallbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from turbine.compiler import pipeline
from turbine.dynamo.part_times import Measured, Watch, measure
from turbine.dynamo.records import GraphRecord, LeftOp
from turbine.page import graph_stages
from turbine.page.explanation import Cost, Event, Explanation, Fallback, PyTorchOp
from turbine.page.graph_stages import NodeNames
from turbine.page.measuring import cost_of, events_of, measure_peak
from turbine.page.source_files import read_lines
from turbine.page.stages import Stages, join
from turbine.runtime import profiler

_NO_MEMORY = (
    "memory over time: compiled parts are timed alone, one after the other, and what PyTorch "
    "allocates between them is not part of that"
)


@dataclass(frozen=True)
class _Part:
    """A compiled part: its stages, and what it costs."""

    stages: Stages
    costs: list[Cost]
    events: Sequence[Event]


def explain_graphs(
    call: Callable[[], object],
    graphs: Sequence[GraphRecord],
    breaks: dict[str, int],
    calls: int,
) -> Explanation:
    """Call a compiled function some times, and each of its parts alone."""
    measured = measure(call, graphs, calls)
    parts = [_part(number, watch, calls) for number, watch in enumerate(measured.watches)]
    left = [op for graph in graphs for op in graph.left]
    return Explanation(
        "torch.compile",
        _facts(graphs, measured, calls),
        1e3 * measured.seconds,
        join([*(part.stages for part in parts), _lines_of(left)]),
        tuple(_with_shares(cost for part in parts for cost in part.costs)),
        tuple(
            Fallback(op.op, op.reason, op.where, count, op.is_chosen)
            for op, count in Counter(left).most_common()
        ),
        breaks,
        tuple(PyTorchOp(op.name, op.count, op.milliseconds) for op in measured.ops),
        tuple(_in_turn(parts)),
        peak=measure_peak(),
        missing=(_NO_MEMORY,),
    )


def _facts(graphs: Sequence[GraphRecord], measured: Measured, calls: int) -> dict[str, str]:
    kinds = Counter(graph.kind for graph in graphs)
    every = sum(part.compiled is not None for graph in graphs for part in graph.parts)
    return {
        "graphs": ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        "compiled parts": f"{every}, of which {len(measured.watches)} ran in the calls",
        "calls measured": str(calls),
    }


def _lines_of(left: Iterable[LeftOp]) -> Stages:
    """The text of the lines whose ops run in PyTorch."""
    return Stages(files=read_lines(op.where for op in left if op.where is not None))


def _part(number: int, watch: Watch, calls: int) -> _Part:
    part, prefix = watch.part, f"part {number}: "
    assert part.compiled is not None
    assert part.code is not None
    flat, compiled = part.code.flat, part.compiled
    described = pipeline.describe_dispatches(flat.bytecode, compiled.target, compiled.strategy)
    assembly = pipeline.assembly_of(flat.bytecode, compiled.target, strategy=compiled.strategy)
    name = f"part {number}, {watch.graph}"
    stages = graph_stages.build(
        {name: flat.graph},
        NodeNames.of_part(name, flat.graph),
        flat.module,
        described,
        assembly,
        prefix,
    )
    seen = watch.observe(calls)
    rows = profiler.rows_of(seen.events, calls, {row["name"]: row for row in described})
    runs = watch.count / (2 * calls)  # it was counted twice
    costs = [cost_of(_in_part(row, prefix, runs), stages) for row in rows]
    start = min((event.start for event in seen.events), default=0)
    events = [replace(event, name=prefix + event.name) for event in events_of(seen.events, start)]
    return _Part(stages, costs, events)


def _in_part(row: profiler.Row, prefix: str, runs: float) -> profiler.Row:
    """A row of a part that a call of the function runs so often."""
    milliseconds, count = runs * row.milliseconds, runs * row.count
    return replace(row, name=prefix + row.name, count=count, milliseconds=milliseconds)


def _with_shares(costs: Iterable[Cost]) -> Iterator[Cost]:
    ordered = sorted(costs, key=lambda cost: -cost.milliseconds)
    total = sum(cost.milliseconds for cost in ordered) or 1.0
    for cost in ordered:
        yield replace(cost, share=cost.milliseconds / total)


def _in_turn(parts: Iterable[_Part]) -> Iterator[Event]:
    """The events of each part after those of the one before."""
    start = 0.0
    for part in parts:
        for event in part.events:
            yield replace(event, start=start + event.start)
        start += max((event.start + event.duration for event in part.events), default=0.0)
