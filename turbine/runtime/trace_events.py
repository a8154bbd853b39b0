"""Rows of Chrome's trace format, which Perfetto, chrome://tracing and TensorBoard read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PROCESS = 0


def complete(
    name: str, category: str, start: float, duration: float, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Something that took time; times are in microseconds."""
    times = {"ph": "X", "ts": start, "dur": duration, "pid": _PROCESS, "tid": 0}
    return {"name": name, "cat": category, **times, "args": dict(args)}


def counter(name: str, time: float, values: Mapping[str, float]) -> dict[str, Any]:
    """Values from a time on."""
    return {"name": name, "ph": "C", "ts": time, "pid": _PROCESS, "args": dict(values)}


def label(what: str, name: str) -> dict[str, Any]:
    """The name of the process or thread: "process_name" or "thread_name"."""
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": 0, "args": {"name": name}}
