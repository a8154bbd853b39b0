"""Profile a compiled program: an artifact and arguments in, the time of each dispatch out.

IREE's own tools, which its runtime package brings, call the program and write down what they see.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import iree.runtime as iree

from turbine import dtypes, errors
from turbine.runtime import trace_events
from turbine.runtime.artifact import Artifact
from turbine.tables import table

_TOOLS = Path(iree.__file__).parents[1] / "_runtime_libs"
_MODES = "host-execution,executable-metadata,memory-events"
# What changes how much memory a pool has given out.
_MEMORY_CHANGES = ("pool_reserve", "pool_release")
_ALLOCATION = "queue_alloca"
_TIME = re.compile(r"^BM_\S+\s+(?P<time>[\d.e+]+) ms", re.MULTILINE)
# Work before the first call, such as packing weights.
_AT_LOAD = "_initializer"


@dataclass(frozen=True)
class Event:
    """One run of a dispatch, or of something else the program asks of the device."""

    name: str
    kind: str  # "dispatch", "copy", "fill" ...
    start: int  # nanoseconds
    end: int
    busy: int  # nanoseconds of all threads together

    @property
    def is_at_load(self) -> bool:
        """Whether it ran before the first call."""
        return self.name.startswith(_AT_LOAD)


@dataclass(frozen=True)
class MemoryPoint:
    """How much memory IREE had given out after a change: results and intermediate values."""

    time: int  # nanoseconds, as in events
    bytes: int


@dataclass(frozen=True)
class Observed:
    """Calls from outside and inside."""

    seconds: float  # a call
    events: list[Event]
    memory: list[MemoryPoint]
    allocated: int  # bytes, in all calls


@dataclass(frozen=True)
class Row:
    """A dispatch: how often a call runs it, its time in a call, and what is known of its work."""

    name: str
    count: float
    milliseconds: float  # in one call, all runs together
    share: float  # of the time of all dispatches
    threads: float  # busy with it, on average
    gflops: float | None = None  # billions of operations in a second
    gbytes: float | None = None  # of memory, in a second
    lines: tuple[str, ...] = ()

    def roofline(self, operations: float, bandwidth: float) -> float | None:
        """The share of what a machine can do in a second: operations, or bytes of memory."""
        shares = [
            1e9 * rate / peak
            for rate, peak in ((self.gflops, operations), (self.gbytes, bandwidth))
            if rate is not None
        ]
        return max(shares, default=None)


@dataclass(frozen=True)
class Profile:
    """Where the time of a program's calls goes."""

    program: str
    calls: int
    milliseconds: float  # a call, from outside
    rows: tuple[Row, ...]  # those that take longest first
    events: tuple[Event, ...]
    memory: tuple[MemoryPoint, ...] = ()  # none for a program on the calling thread
    allocated: float = 0.0  # bytes of results and intermediate values in a call

    def text(self, most: int | None = 20, *, peaks: tuple[float, float] | None = None) -> str:
        """A table with a row for each dispatch, `most` of them.

        `peaks` are the operations and the bytes of memory that this machine can do in a second; the
        column "roof" is the share of them.
        """
        head = ["dispatch", "runs", "ms", "share", "threads", "GFLOP/s", "GB/s", "roof", "lines"]
        shown = self.rows[:most]
        cells = [[row.name, *_figures(row, peaks), _places(row.lines)] for row in shown]
        inside = sum(row.milliseconds for row in self.rows)
        summary = (
            f"{self.program}: {self.milliseconds:.3g} ms a call, {inside:.3g} ms of it in "
            f"{len(self.rows)} dispatches"
        )
        rest = len(self.rows) - len(shown)
        left = [f"and {rest} more dispatches"] if rest else []
        return "\n".join([summary, table([head, *cells], right=range(1, 8)), *left])

    def save_trace(self, path: str | Path) -> None:
        """Write all events as JSON that Perfetto and chrome://tracing open."""
        start = min((event.start for event in self.events), default=0)
        rows = [
            trace_events.complete(
                event.name,
                event.kind,
                (event.start - start) / 1e3,
                (event.end - event.start) / 1e3,
                {"busy_us": event.busy / 1e3},
            )
            for event in self.events
        ]
        Path(path).write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))


def _figures(row: Row, peaks: tuple[float, float] | None) -> list[str]:
    rates = ["-" if rate is None else f"{rate:.3g}" for rate in (row.gflops, row.gbytes)]
    roof = None if peaks is None else row.roofline(*peaks)
    times = [f"{row.milliseconds:.3f}", f"{row.share:.0%}", f"{row.threads:.1f}"]
    return [f"{row.count:g}", *times, *rates, "-" if roof is None else f"{roof:.0%}"]


def _places(lines: Sequence[str]) -> str:
    """Lines of files, which a name and its folder tell apart."""
    return ", ".join("/".join(Path(line).parts[-2:]) for line in lines)


def profile(
    artifact: Artifact,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    function: str | None = None,
    calls: int = 10,
) -> Profile:
    """Call an artifact some times, in a process of IREE's, and time each of its dispatches.

    Lines of the model and rates are there if it was compiled with `describe=True`.

    >>> import torch, turbine
    >>> from turbine.runtime.profiler import profile
    >>> out = turbine.aot.export(torch.nn.Linear(8, 8), args=(torch.ones(4, 8),))
    >>> report = profile(out.compile(describe=True), (torch.ones(4, 8),), calls=2)
    >>> [event.kind for event in report.events][-1]
    'dispatch'
    """
    check_calls(calls)
    if artifact.target.kind != "cpu":
        raise errors.ArgumentError(
            f"the artifact is for {artifact.target.text}", hint="programs for the CPU are profiled"
        )
    called = artifact.function(function)
    with tempfile.TemporaryDirectory(prefix="turbine-profile-") as folder:
        code, *archives = artifact.save_vmfb(Path(folder) / "program.vmfb")
        leaves = called.signature.leaves(args, kwargs or {})
        pairs = zip(called.signature.inputs, leaves, strict=True)
        given = [leaf for spec, leaf in pairs if spec.kind != "constant"]
        weights = dict(zip(artifact._weights.scopes, archives, strict=True))
        run = Run(code, artifact.driver, called.name, given, weights)
        seen = observe(run, calls, Path(folder))
    described = {one["name"]: one for one in artifact.manifest.get("dispatches", [])}
    rows = rows_of(seen.events, calls, described)
    milliseconds = seen.seconds * 1e3
    events, memory = tuple(seen.events), tuple(seen.memory)
    allocated = seen.allocated / calls
    return Profile(called.name, calls, milliseconds, tuple(rows), events, memory, allocated)


def check_calls(calls: int) -> None:
    """Raise for a count of calls that gives no times."""
    if calls < 1:
        raise errors.ArgumentError(f"cannot profile {calls} calls", hint="use 1 or more")


@dataclass(frozen=True)
class Run:
    """A function of a program in a file, and the arguments to call it with: tensors and numbers."""

    code: Path
    driver: str
    function: str
    args: Sequence[Any]
    weights: Mapping[str, Path] = field(default_factory=dict)  # an archive for each scope


def observe(run: Run, calls: int, folder: Path) -> Observed:
    """Call a function some times; `folder` is for files between."""
    recorded, exported = folder / "events.ireeprof", folder / "events.jsonl"
    printed = _run(
        "iree-benchmark-module",
        f"--module={run.code}",
        *(f"--parameters={scope}={path}" for scope, path in run.weights.items()),
        f"--device={run.driver}",
        f"--function={run.function}",
        *_inputs(run.args, folder),
        f"--benchmark_min_time={calls}x",
        f"--device_profiling_mode={_MODES}",
        f"--device_profiling_output={recorded}",
    )
    _run("iree-profile", "export", "--format=ireeperf-jsonl", f"--output={exported}", str(recorded))
    found = _TIME.search(printed)
    if found is None:
        raise errors.RunError("the program could not be profiled", hint=printed.strip()[-500:])
    records = [json.loads(line) for line in exported.read_text().splitlines()]
    seconds = float(found["time"]) / 1e3
    return Observed(seconds, _read_events(records), _read_memory(records), _read_sum(records))


def _run(tool: str, *arguments: str) -> str:
    """What a tool of IREE's prints."""
    try:
        done = subprocess.run(
            [_TOOLS / tool, *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise errors.RunError(
            f"{tool} does not start: {error}",
            hint="install iree-base-runtime again, with its tools",
        ) from error
    if done.returncode:
        raise errors.RunError(f"{tool} failed", hint=(done.stderr or done.stdout).strip()[-500:])
    return done.stdout + done.stderr


def _inputs(args: Sequence[Any], folder: Path) -> list[str]:
    """Arguments as the tools take them: numbers in the text, tensors in files."""
    given = []
    for place, argument in enumerate(args):
        if isinstance(argument, int | float):
            given.append(f"--input={int(argument) if isinstance(argument, bool) else argument}")
            continue
        path = folder / f"{place}.bin"
        path.write_bytes(_raw_bytes(argument))
        sizes = "".join(f"{size}x" for size in argument.shape)
        given.append(f"--input={sizes}{_element(argument)}=@{path}")
    return given


def _element(tensor: Any) -> str:
    """How the tools spell an element type; a truth value is a byte."""
    row = dtypes.from_torch_name(str(tensor.dtype).removeprefix("torch."))
    return "i8" if row.kind == "bool" else row.mlir


def _raw_bytes(leaf: Any) -> bytes:
    if hasattr(leaf, "detach"):
        import torch

        whole = leaf.detach().contiguous().reshape(-1)
        return bytes(whole.view(torch.uint8).numpy().tobytes()) if whole.numel() else b""
    import numpy

    return numpy.ascontiguousarray(leaf).tobytes()


def _read_memory(records: Iterable[Mapping[str, Any]]) -> list[MemoryPoint]:
    """The sum over all pools, after each change of one."""
    points, pools = [], {}
    for row in records:
        if row["record_type"] != "memory_event" or not row["pool_stats_available"]:
            continue
        if row["event_type"] in _MEMORY_CHANGES:
            pools[row["pool_id"]] = row["pool_bytes_reserved"]
            points.append(MemoryPoint(row["host_time_ns"], sum(pools.values())))
    return points


def _read_sum(records: Iterable[Mapping[str, Any]]) -> int:
    """The bytes of all allocations."""
    events = [row for row in records if row["record_type"] == "memory_event"]
    return sum(row["length"] for row in events if row["event_type"] == _ALLOCATION)


def _read_events(records: Iterable[Mapping[str, Any]]) -> list[Event]:
    return [
        Event(
            row["key"] or row["op"],
            row["op"],
            row["start_host_time_ns"],
            row["end_host_time_ns"],
            row["tile_duration_sum_ns"],
        )
        for row in records
        if row["record_type"] == "host_execution_event" and row["valid"]
    ]


def rows_of(events: Iterable[Event], calls: int, described: Mapping[str, Any]) -> list[Row]:
    """A row for each dispatch of a call; the median of its runs stands for all of them."""
    runs: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == "dispatch" and not event.is_at_load:
            runs.setdefault(event.name, []).append(event)
    times = {
        name: median(one.end - one.start for one in found) * len(found) / calls
        for name, found in runs.items()
    }
    total = math.fsum(times.values()) or 1.0
    rows = []
    for name, found in sorted(runs.items(), key=lambda pair: -times[pair[0]]):
        known, count = described.get(name, {}), len(found) / calls
        spent = sum(one.end - one.start for one in found) or 1
        rows.append(
            Row(
                name,
                count,
                times[name] / 1e6,
                times[name] / total,
                sum(one.busy for one in found) / spent,
                _rate(known.get("mflop"), count, times[name]),
                _rate(known.get("megabytes"), count, times[name]),
                tuple(known.get("lines", ())),
            )
        )
    return rows


def _rate(mega: float | None, count: float, nanoseconds: float) -> float | None:
    """Billions in a second."""
    return mega * count * 1e6 / nanoseconds if mega and nanoseconds else None
