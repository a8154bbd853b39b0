"""Compare a kernel's code with the interpreter: where they differ, name the op that does first.

Note [Looking at every op]
The function is traced again, with stores between its ops: what each gives in one program goes to an
output of its own, with an axis for the turns of each loop around it. Interpreter and code run the
same graph, so their outputs are compared one by one, in the order of the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import ONE, Expr, Symbol, as_expr, greatest, least
from turbine.kernel.backends import interpret
from turbine.kernel.backends.interpret import Memory
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.call.launcher import Key, convert_arguments, facts_of, load_code, write_main
from turbine.kernel.lang.memory import store
from turbine.kernel.lang.shapes import new_axes
from turbine.kernel.program import program as programs
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import Parameter
from turbine.kernel.trace import tracer
from turbine.kernel.trace.tracer import Buffer, IndexExpr, Tile, Trace, user_line
from turbine.kernel.trace.types import BufferType, TileType

# How far apart results may be, as a share of the largest number in a tensor: sums are formed in
# another order.
TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 4e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
    torch.float8_e5m2: 0.25,
    torch.float8_e5m2fnuz: 0.25,
    torch.float8_e4m3fn: 0.125,
    torch.float8_e4m3fnuz: 0.125,
}
# Ops that are looked at in one run, and elements that are kept of one.
_AT_ONCE = 16
_MOST_ELEMENTS = 2**24


@dataclass(frozen=True)
class CheckReport:
    """How far interpreter and code are apart in each output; print it to read it."""

    kernel: str
    differences: Mapping[str, float]  # by output, as a share of its largest number

    def __str__(self) -> str:
        apart = ", ".join(f"{name} by at most {d:.1e}" for name, d in self.differences.items())
        return f"{self.kernel}: interpreter and compiled code agree ({apart} of the largest)"


@dataclass(frozen=True)
class Difference:
    """The first element of a tensor, in order, that differs."""

    at: tuple[int, ...]
    interpreted: Any
    compiled: Any


@dataclass(frozen=True)
class Tolerance:
    """How far apart numbers may be; None: by the type of the elements."""

    rtol: float | None
    atol: float | None

    def compute_limit(self, expected: Tensor) -> Tensor:
        """The distance that is allowed, for each element."""
        if not expected.dtype.is_floating_point:
            return torch.zeros(expected.shape, dtype=torch.float64)
        rtol = TOLERANCES[expected.dtype] if self.rtol is None else self.rtol
        wide = expected.to(torch.float64).abs()
        atol = rtol * largest(expected) if self.atol is None else self.atol
        return atol + rtol * torch.where(wide.isfinite(), wide, 0.0)


def check(
    kernel: Kernel, *args: Any, rtol: float | None = None, atol: float | None = None
) -> CheckReport:
    """Run a kernel in the interpreter and compiled, and compare what it writes.

    Where they differ, the error names the first op whose value does, with its line, the program
    and both numbers. `rtol` and `atol` are those of the elements' types, unless they are given.

    >>> import torch, turbine.kernel as tk, turbine.kernel.lang as tkl
    >>> N = tkl.sym.N
    >>> @tk.gen.kernel(N)
    ... def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]):
    ...     tkl.store(y, (tkl.program_id(0),), 2 * tkl.load(x, (tkl.program_id(0),)))
    >>> print(tk.check(double, torch.ones(3)))
    double: interpreter and compiled code agree (y by at most 0.0e+00 of the largest)
    """
    named = kernel.bind_arguments(args, {})
    program, sizes, key = kernel.resolve_call(named)
    pair = _Pair(program, sizes, key, named, Tolerance(rtol, atol))
    differences = {}
    for parameter in program.of_usage("output", "inout"):
        found = pair.difference(parameter.name)
        if found is not None:
            number = int(pair.interpreted[parameter.name].writer[found.at])
            raise _first_op(kernel, pair, parameter.name, found, number)
        differences[parameter.name] = pair.distance(parameter.name)
    return CheckReport(kernel.__name__, differences)


class _Pair:
    """What the interpreter and the code give for the same arguments."""

    def __init__(
        self,
        program: KernelProgram,
        sizes: Mapping[Symbol, int],
        key: Key,
        named: Mapping[str, Any],
        tolerance: Tolerance,
    ) -> None:
        self.program, self.sizes, self.key, self.named = program, sizes, key, named
        self.tolerance = tolerance
        self.interpreted = interpret.run_in_memory(program, sizes, _copy(named))
        self.compiled = _run_compiled(program, sizes, key, _copy(named))

    def pair(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """The two tensors, and where the kernel wrote them."""
        memory: Memory = self.interpreted[name]
        return memory.tensor, self.compiled[name], memory.writer >= 0

    def difference(self, name: str) -> Difference | None:
        """The first element that differs, if one does."""
        expected, actual, is_written = self.pair(name)
        limit = self.tolerance.compute_limit(expected)
        places = torch.nonzero(_differs(expected, actual, limit) & is_written)
        if not len(places):
            return None
        at = tuple(places[0].tolist())
        return Difference(at, expected[at].item(), actual[at].item())

    def distance(self, name: str) -> float:
        """How far apart they are at most, as a share of the largest number."""
        expected, actual, is_written = self.pair(name)
        apart = (expected.to(torch.float64) - actual.to(torch.float64)).abs()
        found = apart[is_written & apart.isfinite()]
        return float(found.max()) / (largest(expected) or 1.0) if found.numel() else 0.0


def _copy(named: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.clone() if isinstance(v, Tensor) else v for n, v in named.items()}


def _differs(expected: Tensor, actual: Tensor, limit: Tensor) -> Tensor:
    if not expected.dtype.is_floating_point:
        return expected != actual
    one, other = expected.to(torch.float64), actual.to(torch.float64)
    same = (one == other) | (one.isnan() & other.isnan())
    return ~(same | ((one - other).abs() <= limit))


def largest(tensor: Tensor) -> float:
    """The largest number in a tensor, without its sign."""
    wide = tensor.to(torch.float64).abs()
    finite = wide[wide.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _run_compiled(
    program: KernelProgram, sizes: Mapping[Symbol, int], key: Key, named: Mapping[str, Any]
) -> dict[str, Tensor]:
    code = write_main(program, facts_of(program, sizes, dict(key.static)))
    call = load_code(program, code, 0.0)
    results = call(convert_arguments(program, named))
    names = [p.name for p in (*program.of_usage("output"), *program.of_usage("inout"))]
    return dict(zip(names, results, strict=False))


# The first op


@dataclass(frozen=True)
class Probe:
    """An op that is looked at: where its values go, and how many axes of that are turns."""

    op: str
    line: str | None
    type: TileType
    turns: tuple[tuple[Symbol, Expr, int], ...]  # counters, where they begin, and how many

    @property
    def buffer(self) -> BufferType:
        """What holds the values of one program."""
        counts = (as_expr(count) for _, _, count in self.turns)
        return BufferType("output", (ONE, *counts, *self.type.shape), self.type.dtype)


def _first_op(
    kernel: Kernel, pair: _Pair, output: str, found: Difference, number: int
) -> errors.KernelError:
    """The error that names the first op of a program that differs."""
    ids = _ids(pair, number)
    whole = (
        f"{output}{list(found.at)} is {found.interpreted} interpreted, {found.compiled} compiled"
    )
    probes = _probes(kernel, pair, ids)
    for start in range(0, len(probes), _AT_ONCE):
        wanted = range(start, min(start + _AT_ONCE, len(probes)))
        program = _probe(kernel, pair, probes, wanted, number)
        looked = _Pair(program, pair.sizes, pair.key, pair.named, pair.tolerance)
        for place in wanted:
            difference = looked.difference(_name(place))
            if difference is not None:
                return _error(kernel, probes[place], difference, ids, whole)
    return errors.KernelError(
        f"{kernel.__name__}: interpreter and compiled code differ in program {ids}: {whole}; "
        "each of its ops agrees when its value is kept",
        where=kernel.signature.place,
        hint="ops that are computed together differ: compare kernel.text('mlir')",
    )


def _error(
    kernel: Kernel, probe: Probe, found: Difference, ids: tuple[int, ...], whole: str
) -> errors.KernelError:
    turns, lane = found.at[1 : 1 + len(probe.turns)], list(found.at[1 + len(probe.turns) :])
    counted = [
        f"{s} = {int(first.number or 0) + t}"
        for (s, first, _), t in zip(probe.turns, turns, strict=True)
    ]
    during = f", {', '.join(counted)}" if counted else ""
    return errors.KernelError(
        f"{kernel.__name__}: interpreter and compiled code differ first at tkl.{probe.op}, "
        f"{probe.type}: program {ids}{during}, lane {lane} is {found.interpreted} interpreted, "
        f"{found.compiled} compiled; so {whole}",
        where=probe.line,
        hint="give rtol= and atol= if that is near enough, else it is a bug of the backend",
    )


def _name(place: int) -> str:
    return f"looked_at_{place}"


def _ids(pair: _Pair, number: int) -> tuple[int, ...]:
    """The program of a number along each axis of the grid."""
    ids: list[int] = []
    for count in reversed(pair.program.grid):
        number, own = divmod(number, count.evaluate(pair.sizes))
        ids.insert(0, own)
    return tuple(ids)


def _probes(kernel: Kernel, pair: _Pair, ids: tuple[int, ...]) -> list[Probe]:
    """Every op that gives a tile, in order."""
    known = dict(pair.sizes)
    known.update({Symbol(f"program_id({a})", "program", a): i for a, i in enumerate(ids)})
    found: list[Probe] = []

    def watch(trace: Trace) -> Callable[[str, Tile], None]:
        def note(name: str, tile: Tile) -> None:
            elements = prod(size.evaluate(pair.sizes) for size in tile.type.shape)
            turns = tuple(_turns(trace, known, _MOST_ELEMENTS // max(elements, 1)))
            found.append(Probe(name, user_line(), tile.type, turns))

        return note

    _retrace(kernel, pair.program.parameters, watch)
    return found


def _turns(
    trace: Trace, known: Mapping[Symbol, int], most: int
) -> Iterator[tuple[Symbol, Expr, int]]:
    """The loops around what is traced now whose turns can be counted and kept."""
    for region in trace.regions:
        if region.counter is None or region.counter not in trace.ranges:
            continue
        within = trace.ranges[region.counter]
        ranges = {
            counter: replace(r, first=r.first.substitute(known), last=r.last.substitute(known))
            for counter, r in trace.ranges.items()
        }
        first = least(within.first.substitute(known), ranges)
        last = greatest(within.last.substitute(known), ranges)
        count = (last - first + 1).number
        if first.number is not None and count is not None and 0 < count <= most:
            most //= count
            yield region.counter, first, count


def _probe(
    kernel: Kernel, pair: _Pair, probes: Sequence[Probe], wanted: range, number: int
) -> KernelProgram:
    """The kernel, with stores of what some of its ops give in one program."""
    buffers = [Parameter(_name(place), probes[place].buffer) for place in wanted]
    number_of: Expr = as_expr(-number)
    stride = ONE
    for axis in reversed(range(len(pair.program.grid))):
        own = Symbol(f"program_id({axis})", "program", axis)
        number_of = number_of + Expr((((own,), 1),)) * stride
        stride = stride * pair.program.grid[axis]

    def watch(trace: Trace, given: Mapping[str, Buffer]) -> Callable[[str, Tile], None]:
        places = iter(range(len(probes)))

        def keep(_: str, tile: Tile) -> None:
            place = next(places)
            if place not in wanted:
                return
            trace.watch = None
            probe = probes[place]
            turns = [Expr((((s,), 1),)) - first for s, first, _ in probe.turns]
            index = [number_of, *turns, *[Expr(())] * tile.type.rank]
            block = new_axes(tile, 1 + len(turns))
            store(given[_name(place)], tuple(map(IndexExpr, index)), block)
            trace.watch = keep

        return keep

    return _retrace(kernel, [*pair.program.parameters, *buffers], watch, buffers)


def _retrace(
    kernel: Kernel,
    present: Sequence[Parameter],
    watch: Callable[..., Callable[[str, Tile], None]],
    buffers: Sequence[Parameter] = (),
) -> KernelProgram:
    """The kernel traced again, while someone looks on."""
    signature = replace(kernel.signature, parameters=(*kernel.signature.parameters, *buffers))

    def function(**given: Any) -> Any:
        trace = tracer.current("tk.check")
        kept = {p.name: given.pop(p.name) for p in buffers}
        trace.watch = watch(trace, kept) if buffers else watch(trace)
        return kernel.function(**given)

    return programs.trace(signature, present, kernel.grid, function)
