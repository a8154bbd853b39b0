"""`turbine trace`: a folder that the option `trace_dir` named in, a row for each kernel out."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from turbine import errors
from turbine.tables import table

_SHOWN = 3  # shapes in a row of the table


@dataclass
class KernelCalls:
    """The calls of one kernel in a trace."""

    name: str
    calls: int = 0
    total_ms: float = 0.0
    median_ms: float = 0.0
    shapes: dict[str, int] = field(default_factory=dict)  # of arguments, and how many calls
    files: list[str] = field(default_factory=list)


def show_trace(
    folder: Annotated[Path, "folder that TURBINE_TRACE_DIR named while kernels ran"],
    *,
    json: Annotated[bool, "print the kernels as JSON"] = False,
) -> int:
    """Show which kernels ran, how often, how long and on what.

    example:
      turbine trace traces
    """
    kernels = _kernels(folder)
    if json:
        print(
            jsons.dumps({"folder": str(folder), "kernels": [asdict(k) for k in kernels]}, indent=2)
        )
    else:
        print(_text(kernels))
    return 0


def _kernels(folder: Path) -> list[KernelCalls]:
    """The kernels of a trace; those that took longest come first."""
    from turbine.runtime.run_trace import BINARY, IR

    kernels: dict[str, KernelCalls] = {}
    for path in sorted([*folder.glob(f"*{IR}"), *folder.glob(f"*{BINARY}")]):
        name = path.name.removesuffix(path.suffix)
        kernels.setdefault(name, KernelCalls(name)).files.append(path.name)
    times: dict[str, list[float]] = {}
    for row in _calls(folder):
        kernel = kernels.setdefault(row["kernel"], KernelCalls(row["kernel"]))
        shapes = ", ".join(row["args"])
        kernel.shapes[shapes] = kernel.shapes.get(shapes, 0) + 1
        times.setdefault(kernel.name, []).append(row["ms"])
    if not kernels:
        raise errors.ArgumentError(
            f"{folder} is not a folder with a trace",
            hint="run a program with TURBINE_TRACE_DIR=FOLDER, then `turbine trace FOLDER`",
        )
    for name, spent in times.items():
        kernel = kernels[name]
        kernel.calls, kernel.total_ms, kernel.median_ms = len(spent), sum(spent), median(spent)
    return sorted(kernels.values(), key=lambda kernel: -kernel.total_ms)


def _calls(folder: Path) -> Iterator[dict[str, Any]]:
    from turbine.runtime.run_trace import CALLS

    path = folder / CALLS
    if not path.is_file():
        return
    unreadable = 0
    for line in path.read_bytes().splitlines():
        row = _call(line)
        if row is None:
            unreadable += 1
        else:
            yield row
    if unreadable:
        print(f"{unreadable} lines of {path} are not calls and were left out", file=sys.stderr)


def _call(line: bytes) -> dict[str, Any] | None:
    """A line of the log; one that a killed process began, or that others wrote, is None."""
    try:
        row: dict[str, Any] = jsons.loads(line)
        known = {"kernel": str(row["kernel"]), "args": [str(a) for a in row["args"]]}
        return {**known, "ms": float(row["ms"])}
    except (ValueError, TypeError, KeyError):
        return None


def _text(kernels: list[KernelCalls]) -> str:
    rows = [("kernel", "calls", "total ms", "median ms", "arguments", "files")]
    rows += [
        (
            kernel.name,
            str(kernel.calls),
            f"{kernel.total_ms:.3f}",
            f"{kernel.median_ms:.3f}",
            _shapes(kernel.shapes),
            " ".join(kernel.files),
        )
        for kernel in kernels
    ]
    return table(rows, right={1, 2, 3})


def _shapes(shapes: dict[str, int]) -> str:
    """The most frequent ones; how many others there are."""
    common = sorted(shapes, key=lambda text: -shapes[text])
    more = [f"{len(common) - _SHOWN} more"] if len(common) > _SHOWN else []
    return "; ".join([*(f"({text})" for text in common[:_SHOWN]), *more])
