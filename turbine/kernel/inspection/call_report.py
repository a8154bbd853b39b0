"""Explain a call of a kernel: its types, bounds, code and speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from textwrap import indent
from typing import Any

from torch import Tensor

from turbine import config
from turbine.algebra import Symbol
from turbine.compiler import host, pipeline
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.inspection import printer, roofline
from turbine.kernel.inspection.peaks import Peaks, peaks
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.work import Work, work_of
from turbine.kernel.trace.types import BufferType, DtypeSymbol
from turbine.tables import bytes_text, table


@dataclass(frozen=True)
class CallReport:
    """The report of `tk.explain`; print it."""

    typed: str  # the graph with types and bounds
    grid: tuple[int, ...]
    sizes: Mapping[str, tuple[int, str]]  # value and source by name
    recompiles: tuple[str, ...]  # changes of the arguments that need a recompile
    compile_seconds: float
    stack_bytes: int
    scratch_bytes: int  # of a workgroup
    seconds: float  # median of a call
    work: Work
    peaks: Peaks

    @property
    def roofline_share(self) -> float:
        """The roofline time of a call as a share of its measured time."""
        return roofline.least_seconds(self.work, self.peaks) / self.seconds

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(kernel: Kernel, *args: Any) -> CallReport:
    """Run a kernel, and report its graph, sizes, code and speed.

    >>> import torch, turbine.kernel as tk, turbine.kernel.lang as tkl
    >>> N, B = tkl.sym.N, tkl.sym.B
    >>> @tk.gen.kernel(N // B)
    ... def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]):
    ...     start = tkl.program_id(0) * B
    ...     tkl.store(y, (start,), 2 * tkl.load(x, (start,), (B,)))
    >>> report = tk.explain(double, torch.ones(3000))
    >>> report.grid, report.sizes["B"]
    ((3,), (1024, 'default'))
    """
    named = kernel.bind_arguments(args, {})
    kernel.check_on_cpu(named, "tk.explain")
    program, sizes, key = kernel.resolve_call(named)
    limits = peaks()
    # A kernel may write to its arguments.
    own = [value.clone() if isinstance(value, Tensor) else value for value in args]
    with config.override(interpret=False):
        seconds = roofline.seconds_of(lambda: kernel(*own))
    view = printer.view_for(kernel, args)
    typed = printer.typed_text(view)
    code, facts = printer.code_of(view)
    compiled = pipeline.compile_ir(code.text.encode(), host.default_target())
    return CallReport(
        typed,
        tuple(count.evaluate(sizes) for count in program.grid),
        {str(s): (value, _source(kernel, s, key.source)) for s, value in sizes.items()},
        tuple(_recompiles(kernel, program, facts)),
        compiled.seconds,
        code.stack_bytes,
        sum(scratch.bytes.evaluate(sizes) for scratch in code.scratch),
        seconds,
        work_of(program, sizes),
        limits,
    )


def _source(kernel: Kernel, symbol: Symbol, source: str) -> str:
    """The source of a size; `source` is that of block sizes that were left open."""
    if symbol.name in kernel.blocks:
        return "given"
    for parameter in kernel.signature.passed:
        if isinstance(parameter.type, BufferType):
            for axis, size in enumerate(parameter.type.shape):
                if symbol in size.symbols:
                    return f"axis {axis} of {parameter.name}"
    return source


def _recompiles(kernel: Kernel, program: KernelProgram, facts: Facts) -> Iterator[str]:
    """Changes of the arguments that need a recompile."""
    yield from (f"{s} % {facts.divisors[s]} != 0" for s in sorted(facts.used, key=str))
    own = kernel.own_sizes(program)
    yield from sorted(f"another {symbol}" for symbol in facts.known if symbol not in own)
    passed = kernel.signature.passed
    open_ = [p.type.dtype for p in passed if isinstance(p.type.dtype, DtypeSymbol)]
    yield from (f"another type {dtype}" for dtype in dict.fromkeys(open_))
    present = {p.name for p in program.parameters}
    for parameter in passed:
        if parameter.is_optional:
            yield f"{parameter.name} {'left out' if parameter.name in present else 'given'}"


def _lines(report: CallReport) -> Iterator[str]:
    yield report.typed
    counts = " x ".join(map(str, report.grid)) or "1"
    yield f"grid: {counts} = {prod(report.grid)} programs"
    rows = [(name, str(value), source) for name, (value, source) in report.sizes.items()]
    yield indent(table([("size", "value", "source"), *rows], right={1}), "  ")
    yield f"recompiles for: {', '.join(report.recompiles) or 'nothing'}"
    yield f"compiled in {report.compile_seconds:.2f} s"
    yield (
        f"memory of a workgroup: {bytes_text(report.stack_bytes)} on the stack, "
        f"{bytes_text(report.scratch_bytes)} in the heap"
    )
    work, limits = report.work, report.peaks
    yield indent(table([_HEAD, *_speed_rows(report)], right={1, 2, 3}), "  ")
    yield (
        f"a call takes {report.seconds * 1e6:.1f} us: {report.roofline_share:.0%} of the roofline, "
        f"bound by {roofline.limit(work, limits)}"
    )
    yield (
        f"peaks are measured: f32 fma in registers on {limits.cores} cores, and a copy larger than "
        "the caches"
    )


_HEAD = ("", "per call", "per second", "peak")


def _speed_rows(report: CallReport) -> Iterator[tuple[str, ...]]:
    work, limits = report.work, report.peaks
    megabytes, rate = work.bytes / 1e6, work.bytes / report.seconds / 1e9
    yield "moved", f"{megabytes:.2f} MB", f"{rate:.2f} GB", f"{limits.bandwidth / 1e9:.1f} GB"
    million, speed = work.operations / 1e6, work.operations / report.seconds / 1e9
    top = f"{limits.operations / 1e9:.1f} GFLOP"
    yield "computed", f"{million:.2f} MFLOP", f"{speed:.2f} GFLOP", top
