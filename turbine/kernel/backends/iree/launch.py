"""Write the function that launches a kernel's executable: sizes, operands, results, assertions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from turbine.algebra import ONE, Expr, Symbol, is_never_negative, slope
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import debugging, elements
from turbine.kernel.backends.iree.emitter import WORKGROUPS, Emitter, Scratch
from turbine.kernel.backends.iree.plan import Step
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import LOG_WORDS, MOST_ALARMS, RECORD_WORDS, MessageTable
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import Parameter
from turbine.kernel.program.size_inference import Axis, in_order
from turbine.kernel.trace.types import BufferType, ScalarType, tensor_of
from turbine.mlir.writer import Index, Value, Writer, mangle


@dataclass(frozen=True)
class Words:
    """Memory that a kernel writes messages to, for the caller to read."""

    name: str
    memref: str
    count: Expr


@dataclass(frozen=True)
class Launch:
    """How an executable is launched."""

    callee: str
    sizes: Sequence[Symbol]  # dynamic sizes that it takes as numbers
    number: str = "index"  # the type of these numbers
    most_workgroups: int | None = None  # None: as many as programs, and it does not take how many
    scratch: Sequence[tuple[str, Expr]] = ()  # element types, and elements for each workgroup
    one_per_worker: bool = False  # see Note [Scratch memory in caches]


class Layout:
    """The operands and results of a launch, in order."""

    def __init__(self, program: KernelProgram, facts: Facts) -> None:
        self.facts = facts
        self.scalars = [p for p in program.parameters if isinstance(p.type, ScalarType)]
        self.inputs = program.of_usage("input")
        self.inouts = program.of_usage("inout")
        outputs = program.of_usage("output")
        self.filled = [p for p in outputs if buffer_type(p).fill is not None]
        self.outputs = [p for p in outputs if buffer_type(p).fill is None]
        self.temporaries = program.of_usage("temporary")
        open_sizes = {
            symbol
            for p in program.parameters
            if isinstance(p.type, BufferType)
            for size in p.type.shape
            for symbol in facts.simplify(size).symbols
        }
        for count in program.grid:
            open_sizes |= facts.simplify(count).symbols
        self.sizes = sorted(open_sizes, key=str)
        self.scratch: list[Scratch] = []
        self.stack_bytes = 0
        self.workgroups = WORKGROUPS
        self.one_per_worker = False
        self.report = MessageTable()
        self.alarm_words = ONE * (MOST_ALARMS + WORKGROUPS * RECORD_WORDS)
        self.steps: tuple[Step, ...] = ()

    @property
    def words(self) -> list[Words]:
        """Memory for assertions and prints."""
        alarms = Words("alarms", debugging.ALARMS, self.alarm_words)
        log = Words("log", debugging.LOG, ONE * LOG_WORDS)
        return [alarms] * bool(self.report.alarms) + [log] * bool(self.report.sites)

    def tensor(self, parameter: Parameter) -> str:
        """The type of a parameter's tensor."""
        if isinstance(parameter.type, ScalarType):
            return f"tensor<{scalar_element(parameter.type.dtype)}>"
        return f"tensor<{self.dims(parameter.type.shape)}{dtype_of(parameter.type).mlir}>"

    def memref(self, parameter: Parameter) -> str:
        """The type of a parameter inside the kernel."""
        type = buffer_type(parameter)
        return f"memref<{self.dims(type.shape)}{elements.storage_type(dtype_of(type))}>"

    def dims(self, shape: Sequence[Expr]) -> str:
        """A shape as MLIR types spell it."""
        numbers = [self.facts.simplify(size).number for size in shape]
        return "".join("?x" if number is None else f"{number}x" for number in numbers)

    def open(self, shape: Sequence[Expr]) -> list[Expr]:
        """The dynamic sizes of a shape."""
        simple = [self.facts.simplify(size) for size in shape]
        return [size for size in simple if size.number is None]


def scalar_element(dtype: Dtype) -> str:
    """The MLIR type that a scalar argument is passed in."""
    if dtype.kind == "bool":
        return "i8"
    return elements.carrier(dtype)


def argument_name(parameter: Parameter) -> str:
    """The SSA name of a parameter; no other value has this prefix."""
    return f"%of_{mangle(parameter.name)}"


def size_name(symbol: Symbol) -> str:
    return f"%size_{mangle(symbol.name)}"


def buffer_type(parameter: Parameter) -> BufferType:
    assert isinstance(parameter.type, BufferType)
    return parameter.type


def dtype_of(type: BufferType) -> Dtype:
    assert isinstance(type.dtype, Dtype)
    return type.dtype


def write_function(
    program: KernelProgram, layout: Layout, launch: Launch, name: str, *, public: bool = False
) -> list[str]:
    """Write the function that launches the executable; a public one returns messages too."""
    w = Writer()
    passed = [p for p in program.parameters if p.is_passed]
    sizes = _sizes(w, layout, passed)
    host = Emitter("", layout.facts, dict(sizes), w)
    groups = _count_workgroups(host, program, launch)
    operands = [_number(w, launch, sizes[s]) for s in launch.sizes]
    if launch.most_workgroups is not None:
        operands.insert(0, _number(w, launch, groups))
    read = (*layout.scalars, *layout.inputs)
    aliased = [] if public else _may_alias(layout)
    barriers = {p.name: _barrier(w, layout, p) for p in aliased}
    operands += [_operand(host, layout, p, barriers.get(p.name, argument_name(p))) for p in read]
    tied = [_operand(host, layout, p, argument_name(p)) for p in layout.inouts]
    tied += [_operand(host, layout, p, _fill(host, layout, p)) for p in layout.filled]
    tied += [_words(host, layout, word) for word in layout.words]
    new = [
        f"{layout.tensor(p)}{_format_dims(host, layout.open(_shape(p)))}" for p in layout.outputs
    ]
    for element, count in launch.scratch:
        total = w.index(w.mul(groups, host.index(count)))
        new.append(f"tensor<?x{element}>{{{total}}}")
    launched = ", ".join([*(f"{operand.name}{operand.sizes}" for operand in tied), *new])
    given = [*operands, *tied]
    names = [f"%made{place}" for place in range(len(tied) + len(new))]
    w.line(
        f"{', '.join(names)} = flow.dispatch {launch.callee}[{groups}]"
        f"({', '.join(o.name for o in given)}) : ({', '.join(o.type_and_sizes for o in given)})"
        f" -> ({launched})"
    )
    results = _results(host, program, layout, names, public)
    if not public:
        for p in aliased:
            _barrier(w, layout, p)
        _check_alarms(host, layout, names)
    arguments = ", ".join(f"{argument_name(p)}: {layout.tensor(p)}" for p in passed)
    gives = ", ".join(type for _, type in results)
    return [
        f"func.func {'public' if public else 'private'} @{name}({arguments}) -> ({gives}) {{",
        *w.top,
        *w.lines,
        f"return {', '.join(name for name, _ in results)} : {gives}",
        "}",
    ]


def _count_workgroups(host: Emitter, program: KernelProgram, launch: Launch) -> Value:
    total: Index = 1
    for count in program.grid:
        total = host.w.mul(total, host.index(count))
    if launch.most_workgroups is not None:
        total = host.w.min(total, launch.most_workgroups)
        if launch.one_per_worker:
            total = host.w.min(total, _count_workers(host.w, launch.most_workgroups))
        total = host.w.max(total, 1)
    return host.w.index(total)


def _count_workers(w: Writer, otherwise: int) -> Value:
    """The number of threads that run workgroups, if the device says it."""
    device = w.emit(f"hal.devices.get {w.index(0)} : !hal.device", "!hal.device")
    found, count = w.fresh("i1"), w.fresh("i64")
    query = f'hal.device.query<{device} : {device.type}> key("hal.dispatch" :: "concurrency")'
    w.line(f"{found}, {count} = {query} : {found.type}, {count.type} = {otherwise} : {count.type}")
    return w.convert("arith.index_cast", count, "index")


def _number(w: Writer, launch: Launch, number: Index) -> Operand:
    value = w.index(number)
    if launch.number != "index":
        value = w.emit(f"arith.index_cast {value} : index to {launch.number}", launch.number)
    return Operand(launch.number, str(value))


@dataclass(frozen=True)
class Operand:
    """An operand of a launch."""

    type: str
    name: str
    sizes: str = ""  # the dynamic ones, in braces

    @property
    def type_and_sizes(self) -> str:
        """The type with its dynamic sizes."""
        return f"{self.type}{self.sizes}"


def _results(
    host: Emitter, program: KernelProgram, layout: Layout, names: Sequence[str], public: bool
) -> list[tuple[str, str]]:
    """The results of the function: outputs, in-out buffers and messages."""
    tied = [*layout.inouts, *layout.filled]
    ordered = [*(p.name for p in tied), *(word.name for word in layout.words)]
    ordered += [p.name for p in layout.outputs]
    found = dict(zip(ordered, names, strict=False))
    parameters = [*program.of_usage("output"), *layout.inouts]
    results = [(found[p.name], layout.tensor(p)) for p in parameters]
    if public:
        results += [(found[w.name], _words_tensor(layout, w)) for w in layout.words]
    return results


def _check_alarms(host: Emitter, layout: Layout, names: Sequence[str]) -> None:
    """Fail if an assertion of the kernel failed."""
    if not layout.report.alarms:
        return
    w, word = host.w, names[len(layout.inouts) + len(layout.filled)]
    tensor = _words_tensor(layout, layout.words[0])
    tensor += _format_dims(host, layout.open([layout.alarm_words]))
    for place, alarm in enumerate(layout.report.alarms):
        value = w.emit(f"flow.tensor.load {word}[{w.index(place)}] : {tensor}", "i64")
        holds = w.compare("arith.cmpi", "eq", value, w.constant(0, "i64"))
        failing = "" if alarm.indexed is not None else "assertion failed in a kernel: "
        message = json.dumps(f"{failing}{alarm.message} ({alarm.line})")
        w.line(f"cf.assert {holds}, {message}")


def _may_alias(layout: Layout) -> list[Parameter]:
    """The inputs that may alias an in-out buffer: a caller may pass one value for both.

    Note [One value twice]
    IREE copies a value before a dispatch writes it if the value is read later. If the dispatch
    reads it through another operand, IREE makes no copy, or one for both operands. So the input
    goes through a barrier, which makes it another value in the same memory, and is used again
    after the dispatch. Then IREE copies if and only if the values alias.
    """
    written = [_static_bytes(layout, p) for p in layout.inouts]
    sizes = [(p, _static_bytes(layout, p)) for p in layout.inputs]
    return [p for p, size in sizes if any(size in (None, w) or w is None for w in written)]


def _barrier(w: Writer, layout: Layout, parameter: Parameter) -> str:
    of = layout.tensor(parameter)
    return str(w.emit(f"util.optimization_barrier {argument_name(parameter)} : {of}", of))


def _static_bytes(layout: Layout, parameter: Parameter) -> int | None:
    type = buffer_type(parameter)
    numbers = [layout.facts.simplify(size).number for size in type.shape]
    known = [number for number in numbers if number is not None]
    return prod(known) * dtype_of(type).itemsize if len(known) == len(numbers) else None


def _words(host: Emitter, layout: Layout, word: Words) -> Operand:
    tensor, dims = _words_tensor(layout, word), _format_dims(host, layout.open([word.count]))
    made = _splat(host.w, host.w.constant(0, "i64"), tensor, dims)
    return Operand(tensor, made, dims)


def _words_tensor(layout: Layout, word: Words) -> str:
    return f"tensor<{layout.dims([word.count])}i64>"


def _splat(w: Writer, number: Value, tensor: str, dims: str = "") -> str:
    """A constant tensor in memory of its own: IREE merges equal splats, and two results that are
    tied to the same splat would share its memory."""
    apart = w.emit(f"util.optimization_barrier {number} : {number.type}", number.element)
    return str(w.emit(f"flow.tensor.splat {apart} : {tensor}{dims}", tensor))


def _sizes(w: Writer, layout: Layout, passed: Sequence[Parameter]) -> dict[Symbol, Value]:
    """Infer the dynamic sizes from the shapes of the arguments."""
    found: dict[Symbol, Value] = {}
    axes = [
        Axis(parameter, number, layout.facts.simplify(size))
        for parameter in passed
        if isinstance(parameter.type, BufferType)
        for number, size in enumerate(parameter.type.shape)
    ]
    for axis, symbol in in_order(axes, found):
        if symbol is not None:
            found[symbol] = _solve(w, layout, axis, symbol, found)
    return found


def _solve(
    w: Writer, layout: Layout, axis: Axis, unknown: Symbol, found: dict[Symbol, Value]
) -> Value:
    """Solve a size expression for a symbol it is linear in."""
    place, of = w.constant(axis.number, "index"), layout.tensor(axis.parameter)
    dim = w.emit(f"tensor.dim {argument_name(axis.parameter)}, {place} : {of}", "index")
    factor = slope(axis.size, unknown)
    assert factor is not None
    emitter = Emitter("", layout.facts, dict(found), w)
    above = w.sub(dim, emitter.index(axis.size.substitute({unknown: 0})))
    by = emitter.index(factor)
    # The divisor may be a size that is 0: then any value will do.
    if factor.number is None and is_never_negative(factor, {}):
        by = w.max(by, 1)
    return w.index(w.floordiv(above, by))


def _operand(host: Emitter, layout: Layout, parameter: Parameter, name: str) -> Operand:
    dims = [] if isinstance(parameter.type, ScalarType) else layout.open(parameter.type.shape)
    return Operand(layout.tensor(parameter), name, _format_dims(host, dims))


def _shape(parameter: Parameter) -> tuple[Expr, ...]:
    return buffer_type(parameter).shape


def _format_dims(emitter: Emitter, dims: Sequence[Expr]) -> str:
    listed = ", ".join(str(emitter.w.index(emitter.index(dim))) for dim in dims)
    return f"{{{listed}}}" if dims else ""


def _fill(emitter: Emitter, layout: Layout, parameter: Parameter) -> str:
    """Write the initial value of a filled output."""
    type = buffer_type(parameter)
    dtype = dtype_of(type)
    assert type.fill is not None
    w, tensor = emitter.w, layout.tensor(parameter)
    dims = _format_dims(emitter, layout.open(type.shape))
    if dtype.kind != "float":
        return _splat(w, w.constant(type.fill, dtype.mlir), tensor, dims)
    # The host has no small floats and loses the sign of -0.0, so the bits are splat as integers.
    element = f"i{dtype.bits}"
    bits = tensor_of(type.fill, dtype).view(_INTEGERS[dtype.bits])
    held = tensor.replace(dtype.mlir, element)
    made = _splat(w, w.constant(int(bits), element), held, dims)
    return str(w.emit(f"flow.tensor.bitcast {made} : {held}{dims} -> {tensor}{dims}", tensor))


_INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
