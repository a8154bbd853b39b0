"""Explain an artifact: its stages if it keeps them, and what calls of it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from turbine.kernel.inspection import peaks
from turbine.page.explanation import Cost, Event, Explanation, Memory, Peak
from turbine.page.stages import Stages, section_of
from turbine.runtime import profiler
from turbine.runtime.artifact import Artifact
from turbine.tables import bytes_text

_NO_STAGES = (
    "the graph, IR, code and lines of the model: this artifact was compiled without them. Compile "
    "it with `turbine compile --describe`, or in Python with compile(describe=True)"
)
_NO_MEMORY = (
    "memory over time: IREE reports it for programs on several threads, and calls of this one run "
    "on the calling thread"
)


def explain_artifact(
    artifact: Artifact,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    function: str | None = None,
    calls: int = 10,
    title: str = "",
) -> Explanation:
    """Measure an artifact, and put the figures beside its stages.

    >>> import torch, turbine
    >>> from turbine.page.measuring import explain_artifact
    >>> x = torch.ones(4, 8)
    >>> out = turbine.aot.export(torch.nn.Linear(8, 8), args=(x,))
    >>> found = explain_artifact(out.compile(describe=True), (x,), calls=1)
    >>> found.stages.ops[-1].name, found.missing
    ('main/addmm', ())
    """
    found = profiler.profile(artifact, args, kwargs, function=function, calls=calls)
    stages = stages_of(artifact)
    start = min([*(e.start for e in found.events), *(m.time for m in found.memory)], default=0)
    absent = [_NO_STAGES] if stages is None else []
    return Explanation(
        title or artifact.manifest["name"],
        _facts(artifact, found),
        found.milliseconds,
        stages or Stages(),
        tuple(cost_of(row, stages) for row in found.rows),
        events=tuple(events_of(found.events, start)),
        calls=found.calls,
        memory=tuple(memory_of(found.memory, start)),
        peak=measure_peak(),
        missing=(*absent, *([] if found.memory else [_NO_MEMORY])),
    )


def stages_of(artifact: Artifact) -> Stages | None:
    """The stages that an artifact keeps of the code that runs here, if it does."""
    contents, section = artifact._contents, section_of(artifact.manifest["code"])
    if section not in contents.sections:
        return None
    contents.check(section)
    return Stages.from_bytes(contents.bytes_of(section), contents.source)


def _facts(artifact: Artifact, found: profiler.Profile) -> dict[str, str]:
    origin = artifact.manifest["provenance"]
    inside = sum(row.milliseconds for row in found.rows)
    return {
        "function": f"{found.program}{artifact.function(found.program).signature.text()}",
        "target": f"{artifact.target.text} {artifact.target.architecture}".strip(),
        "strategy": artifact.manifest["strategy"],
        "model": str(origin.get("source") or origin.get("model", "")),
        "dispatches": f"{len(found.rows)}, {inside:.3g} ms of a call",
        "allocated": f"{bytes_text(round(found.allocated))} in a call",
        "calls measured": str(found.calls),
        **{name: str(origin[name]) for name in ("turbine", "torch") if name in origin},
    }


def cost_of(row: profiler.Row, stages: Stages | None) -> Cost:
    """A row of a profile."""
    gflops = row.gflops
    if gflops is None and stages is not None:
        gflops = _kernel_rate(row, stages)
    return Cost(row.name, row.count, row.milliseconds, row.share, row.threads, gflops, row.gbytes)


def _kernel_rate(row: profiler.Row, stages: Stages) -> float | None:
    """The rate of a kernel, whose IR says nothing of its operations; its ops in the graph do."""
    dispatch = stages.dispatches.get(row.name)
    if dispatch is None or _FORMED_BY_IREE in row.name or not row.milliseconds:
        return None
    if row.gbytes is None:  # of dynamic sizes, and the ops have those of the example
        return None
    operations = sum(stages.ops[number].operations for number in dispatch.ops)
    return operations / 1e6 / row.milliseconds if operations else None


_FORMED_BY_IREE = "_dispatch_"


def events_of(events: Iterable[profiler.Event], start: int) -> Sequence[Event]:
    """Events since a start in nanoseconds."""
    return [
        Event(
            event.name,
            event.kind,
            (event.start - start) / 1e3,
            (event.end - event.start) / 1e3,
            event.busy / 1e3,
        )
        for event in events
    ]


def memory_of(points: Iterable[profiler.MemoryPoint], start: int) -> Sequence[Memory]:
    """Points since a start in nanoseconds."""
    return [Memory((point.time - start) / 1e3, point.bytes) for point in points]


def measure_peak() -> Peak:
    """What this machine can do; measured once in a process."""
    found = peaks.peaks()
    return Peak(found.operations, found.bandwidth)
