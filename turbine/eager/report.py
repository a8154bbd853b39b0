"""What the device did: which programs were compiled, why they ended, and what ran by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from textwrap import shorten

from turbine.dynamo.records import LeftOp
from turbine.eager import ops, programs, recorder
from turbine.eager.trace_tree import LOCK
from turbine.tables import table


@dataclass(frozen=True)
class DeviceReport:
    """What `turbine.eager.explain` found; `str` of it is a table."""

    programs: tuple[programs.Code, ...]
    ends: dict[str, int]
    fallbacks: dict[str, str]

    def __str__(self) -> str:
        """A line for each program, the one that ran most often first."""
        ran = sorted(self.programs, key=lambda code: -sum(code.calls.values()))
        rows = [
            [
                str(len(code.ops)),
                str(code.calls[programs.COMPILED]),
                str(code.calls[programs.IN_PYTORCH]),
                code.state,
                f"{code.compile_seconds:.1f}",
                shorten(code.reason or _summary(code.ops), 60),
            ]
            for code in ran
        ]
        head = ["ops", "runs compiled", "in PyTorch", "state", "compile s", "what"]
        lines = [table([head, *rows], right={0, 1, 2, 4})]
        left = dict.fromkeys(_describe(op) for code in ran for op in code.left)
        lines += [f"in PyTorch: {text}" for text in left]
        lines += [f"ended by {why}: {count}" for why, count in Counter(self.ends).most_common()]
        lines += [f"by itself in PyTorch: {op}: {why}" for op, why in self.fallbacks.items()]
        return "\n".join(lines)


def explain() -> DeviceReport:
    """The programs that ran so far, compiled or not, and why they ended."""
    with LOCK:
        codes = tuple({id(code): code for code in programs.codes.values()}.values())
        return DeviceReport(codes, dict(recorder.ends), fallbacks())


def trace() -> str:
    """The ops that were called and have not run yet, a line each."""
    with LOCK:
        return "\n".join(recorder.pending())


def fallbacks() -> dict[str, str]:
    """The ops that could not be recorded and ran in PyTorch by themselves, with reasons."""
    return dict(ops.fallbacks.keys())


def _describe(left: LeftOp) -> str:
    where = f" at {left.where}" if left.where is not None else ""
    return f"{left.op}{where}: {left.reason}"


def _summary(names: list[str]) -> str:
    counts = Counter(name.removeprefix("aten.").split(".")[0] for name in names)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
