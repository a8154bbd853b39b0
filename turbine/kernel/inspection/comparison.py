"""Compare compiled code with the interpreter, and find the first op that differs.

Note [Probes]
The function is traced again with a store after each op: its value in one program goes to an extra
output, with an axis for the iterations of each enclosing loop. Interpreter and code run the same
graph, so these outputs are compared one by one, in the order of the ops.
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

# Tolerances relative to the largest number of a tensor: sums are computed in another order.
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
# The most ops probed in one run, and the most elements stored for one.
_MOST_PROBES = 16
_MOST_ELEMENTS = 2**24


@dataclass(frozen=True)
class CheckReport:
    """The largest difference between interpreter and code for each output; print it."""

    kernel: str
    differences: Mapping[str, float]  # by output, as a share of its largest number

    def __str__(self) -> str:
        apart = ", ".join(f"{name} by at most {d:.1e}" for name, d in self.differences.items())
        return f"{self.kernel}: interpreter and compiled code agree ({apart} of the largest)"


@dataclass(frozen=True)
class Difference:
    """The first element of a tensor that differs."""

    at: tuple[int, ...]
    interpreted: Any
    compiled: Any


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference; None: the default for the dtype."""

    rtol: float | None
    atol: float | None

    def compute_limit(self, expected: Tensor) -> Tensor:
        """The allowed difference of each element."""
        if not expected.dtype.is_floating_point:
            return torch.zeros(expected.shape, dtype=torch.float64)
        rtol = TOLERANCES[expected.dtype] if self.rtol is None else self.rtol
        wide = expected.to(torch.float64).abs()
        atol = rtol * largest(expected) if self.atol is None else self.atol
        return atol + rtol * torch.where(wide.isfinite(), wide, 0.0)


def check(
    kernel: Kernel, *args: Any, rtol: float | None = None, atol: float | None = None
) -> CheckReport:
    """Run a kernel in the interpreter and compiled, and compare the outputs.

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
    kernel.check_on_cpu(named, "tk.check")
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
    """The results of the interpreter and of the code for the same arguments."""

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
        """Both tensors, and which elements the kernel wrote."""
        memory: Memory = self.interpreted[name]
        return memory.tensor, self.compiled[name], memory.writer >= 0

    def difference(self, name: str) -> Difference | None:
        """The first element that differs, if any."""
        expected, actual, is_written = self.pair(name)
        limit = self.tolerance.compute_limit(expected)
        places = torch.nonzero(_differs(expected, actual, limit) & is_written)
        if not len(places):
            return None
        at = tuple(places[0].tolist())
        return Difference(at, expected[at].item(), actual[at].item())

    def distance(self, name: str) -> float:
        """The largest difference, as a share of the largest number."""
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
    """The largest absolute value in a tensor."""
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
    """An op that is probed, and the loops around it."""

    op: str
    line: str | None
    type: TileType
    loops: tuple[tuple[Symbol, Expr, int], ...]  # counter, start and number of iterations

    @property
    def buffer(self) -> BufferType:
        """The output for the values of one program."""
        counts = (as_expr(count) for _, _, count in self.loops)
        return BufferType("output", (ONE, *counts, *self.type.shape), self.type.dtype)


def _first_op(
    kernel: Kernel, pair: _Pair, output: str, found: Difference, number: int
) -> errors.KernelError:
    """The error for the first op of a program that differs."""
    ids = _ids(pair, number)
    whole = (
        f"{output}{list(found.at)} is {found.interpreted} interpreted, {found.compiled} compiled"
    )
    probes = _probes(kernel, pair, ids)
    for start in range(0, len(probes), _MOST_PROBES):
        wanted = range(start, min(start + _MOST_PROBES, len(probes)))
        program = _probe(kernel, pair, probes, wanted, number)
        probed = _Pair(program, pair.sizes, pair.key, pair.named, pair.tolerance)
        for place in wanted:
            difference = probed.difference(_name(place))
            if difference is not None:
                return _error(kernel, probes[place], difference, ids, whole)
    return errors.KernelError(
        f"{kernel.__name__}: interpreter and compiled code differ in program {ids}: {whole}; "
        "each op agrees if its value is stored",
        where=kernel.signature.place,
        hint="the difference is in fused ops: compare kernel.text('mlir')",
    )


def _error(
    kernel: Kernel, probe: Probe, found: Difference, ids: tuple[int, ...], whole: str
) -> errors.KernelError:
    iteration, lane = found.at[1 : 1 + len(probe.loops)], list(found.at[1 + len(probe.loops) :])
    counted = [
        f"{s} = {int(first.number or 0) + t}"
        for (s, first, _), t in zip(probe.loops, iteration, strict=True)
    ]
    during = f", {', '.join(counted)}" if counted else ""
    return errors.KernelError(
        f"{kernel.__name__}: interpreter and compiled code differ first at tkl.{probe.op}, "
        f"{probe.type}: program {ids}{during}, lane {lane} is {found.interpreted} interpreted, "
        f"{found.compiled} compiled; so {whole}",
        where=probe.line,
        hint="pass rtol= and atol= if the difference is acceptable; otherwise report a bug",
    )


def _name(place: int) -> str:
    return f"probe_{place}"


def _ids(pair: _Pair, number: int) -> tuple[int, ...]:
    """The index of a program along each axis of the grid."""
    ids: list[int] = []
    for count in reversed(pair.program.grid):
        number, own = divmod(number, count.evaluate(pair.sizes))
        ids.insert(0, own)
    return tuple(ids)


def _probes(kernel: Kernel, pair: _Pair, ids: tuple[int, ...]) -> list[Probe]:
    """A probe for every op whose result is a tile, in order."""
    known = dict(pair.sizes)
    known.update({Symbol(f"program_id({a})", "program", a): i for a, i in enumerate(ids)})
    found: list[Probe] = []

    def watch(trace: Trace) -> Callable[[str, Tile], None]:
        def note(name: str, tile: Tile) -> None:
            elements = prod(size.evaluate(pair.sizes) for size in tile.type.shape)
            loops = tuple(_loops(trace, known, _MOST_ELEMENTS // max(elements, 1)))
            found.append(Probe(name, user_line(), tile.type, loops))

        return note

    _retrace(kernel, pair.program.parameters, watch)
    return found


def _loops(
    trace: Trace, known: Mapping[Symbol, int], most: int
) -> Iterator[tuple[Symbol, Expr, int]]:
    """The enclosing loops whose iterations can be counted and stored."""
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
    """Trace the kernel with stores of the results of some ops in one program."""
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
            iteration = [Expr((((s,), 1),)) - first for s, first, _ in probe.loops]
            index = [number_of, *iteration, *[Expr(())] * tile.type.rank]
            block = new_axes(tile, 1 + len(iteration))
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
    """Trace the kernel again with a watch function."""
    signature = replace(kernel.signature, parameters=(*kernel.signature.parameters, *buffers))

    def function(**given: Any) -> Any:
        trace = tracer.current("tk.check")
        kept = {p.name: given.pop(p.name) for p in buffers}
        trace.watch = watch(trace, kept) if buffers else watch(trace)
        return kernel.function(**given)

    return programs.trace(signature, present, kernel.grid, function)
