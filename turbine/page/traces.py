"""Events of calls in the format of Chrome's traces, for Perfetto and for TensorBoard's profiler."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turbine.page.explanation import Event, Explanation
from turbine.runtime import trace_events

_SCHEMA = 1  # of what torch.profiler writes


def trace(explanation: Explanation) -> dict[str, Any]:
    """All events, and memory as a counter."""
    return {"traceEvents": list(_events(explanation)), "displayTimeUnit": "ms"}


def save_trace(path: str | Path, explanation: Explanation) -> None:
    """Write a .json file that Perfetto and chrome://tracing open."""
    Path(path).write_text(json.dumps(trace(explanation)))


def save_tensorboard(folder: str | Path, explanation: Explanation) -> Path:
    """Write a run for the PyTorch profiler plug-in of TensorBoard; returns the file.

    Each call is a step, if all of them ran as many commands.
    """
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{socket.gethostname()}_turbine.{time.time_ns() // 1_000_000}.pt.trace.json"
    rows = [*_events(explanation), *_steps(explanation)]
    path.write_text(json.dumps({"schemaVersion": _SCHEMA, "traceEvents": rows}))
    return path


def _events(explanation: Explanation) -> Iterator[dict[str, Any]]:
    yield trace_events.label("process_name", explanation.title)
    yield trace_events.label("thread_name", "calls")
    ops = explanation.stages.ops
    lines = {name: text.ops for name, text in explanation.stages.dispatches.items()}
    for event in explanation.events:
        names = ", ".join(ops[number].name for number in lines.get(event.name, ()))
        yield _complete(event, {"busy_us": event.busy, **({"ops": names} if names else {})})
    for point in explanation.memory:
        yield trace_events.counter("memory", point.time, {"bytes": point.bytes})


def _complete(event: Event, args: Mapping[str, Any]) -> dict[str, Any]:
    category = "cpu_op" if event.kind == "dispatch" else "user_annotation"
    return trace_events.complete(event.name, category, event.start, event.duration, args)


def _steps(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """A step for each call; one for all if calls cannot be told apart."""
    runs = [event for event in explanation.events if event.kind == _RUN]
    size, rest = divmod(len(runs), explanation.calls or 1)
    size = len(runs) if rest or not explanation.calls else size
    for number, start in enumerate(range(0, len(runs), size or 1)):
        first, last = runs[start], runs[start + size - 1]
        whole = last.start + last.duration - first.start
        yield _complete(Event(f"ProfilerStep#{number}", "step", first.start, whole), {})


_RUN = "execute"  # of a program's commands; a call has one or more
