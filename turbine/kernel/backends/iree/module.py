"""Write the MLIR module of a kernel: an executable, and a function that launches it.

Note [Few workgroups]
A grid may have many small programs. A workgroup runs a range of them in sequence, and a launch has
at most WORKGROUPS workgroups, however large the grid is.

Note [Workgroups that do nothing]
A worker of IREE reserves RESERVED consecutive workgroups if there are as many for each worker. Two
workers would share 24 workgroups 16 to 8. So only the first of RESERVED runs programs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from turbine import errors
from turbine.algebra import ZERO, Expr, Symbol, is_never_negative, slope
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import debugging, elements
from turbine.kernel.backends.iree.emitter import WORKGROUPS, Emitter, Scratch, Source
from turbine.kernel.backends.iree.plan import Step
from turbine.kernel.backends.iree.rules import RULES
from turbine.kernel.backends.iree.tiles import TileValue
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import LOG_WORDS, MessageTable
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import Parameter
from turbine.kernel.program.size_inference import Axis, in_order
from turbine.kernel.trace.types import BufferType, ScalarType, tensor_of
from turbine.mlir.writer import Index, Value, Writer, mangle
from turbine.target import Target

# Limits of an IREE dispatch.
_MOST_BINDINGS, _MOST_SIZES = 32, 31
# Target kinds that kernels compile for; "any" is IR for a target that is not known yet.
_KINDS = ("cpu", "any")
# See Note [Workgroups that do nothing].
RESERVED = 8
DISPATCH_ATTRIBUTES = (
    "translation_info = #iree_codegen.translation_info<"
    "pipeline = #iree_cpu.pipeline<BufferOpsTileAndVectorize>>"
)


@dataclass(frozen=True)
class Code:
    """A module, the name of its entry function, and what the launcher needs to know."""

    text: str
    name: str
    report: MessageTable
    stack_bytes: int
    scratch: tuple[Scratch, ...]  # of one workgroup, in the heap
    workgroups: int  # at most
    steps: tuple[Step, ...]


def write(
    program: KernelProgram, facts: Facts, name: str, target: Target, *, public: bool = False
) -> Code:
    """Write a module whose function `name` returns the outputs and in-out buffers.

    `target` is resolved: register tiles of matmuls depend on its vector registers.
    """
    assert RULES
    if target.kind not in _KINDS:
        raise errors.KernelError(
            f"kernel {program.name} is compiled for {target.text}",
            where=program.place,
            hint='kernels run on CPUs: compile for target="cpu"',
        )
    layout = Layout(program, facts)
    body = _body(program, facts, layout, name, target)
    _check_count(program, layout)
    text = "\n".join(["module {", *body, *_function(program, layout, name, public), "}"])
    return Code(
        text,
        name,
        layout.report,
        layout.stack_bytes,
        tuple(layout.scratch),
        layout.workgroups,
        layout.steps,
    )


def _check_count(program: KernelProgram, layout: Layout) -> None:
    passed = len(program.parameters) - len(layout.temporaries)
    count = passed + len(layout.words) + bool(layout.scratch)
    if count > _MOST_BINDINGS:
        raise errors.KernelError(
            f"kernel {program.name} needs {count} bindings, for {passed} arguments and its scratch "
            f"memory; IREE supports {_MOST_BINDINGS}",
            where=program.place,
            hint="stack tensors of one shape, or split the kernel in two",
        )
    if len(layout.sizes) > _MOST_SIZES:
        listed = ", ".join(map(str, layout.sizes))
        raise errors.KernelError(
            f"kernel {program.name} has {len(layout.sizes)} dynamic sizes: "
            f"{listed}; IREE supports {_MOST_SIZES}",
            where=program.place,
            hint="name some in specialize=, which makes them compile-time constants",
        )


@dataclass(frozen=True)
class Words:
    """Memory that a kernel writes messages to, for the caller to read."""

    name: str
    memref: str
    tensor: str


class Layout:
    """The operands and results of a launch, in order."""

    def __init__(self, program: KernelProgram, facts: Facts) -> None:
        self.facts = facts
        self.scalars = [p for p in program.parameters if isinstance(p.type, ScalarType)]
        self.inputs = program.of_usage("input")
        self.inouts = program.of_usage("inout")
        outputs = program.of_usage("output")
        self.filled = [p for p in outputs if _buffer(p).fill is not None]
        self.outputs = [p for p in outputs if _buffer(p).fill is None]
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
        self.report = MessageTable()
        self.steps: tuple[Step, ...] = ()

    @property
    def words(self) -> list[Words]:
        """Memory for assertions and prints."""
        alarms = Words("alarms", debugging.ALARMS, debugging.ALARMS.replace("memref", "tensor"))
        log = Words("log", debugging.LOG, f"tensor<{LOG_WORDS}xi64>")
        return [alarms] * bool(self.report.alarms) + [log] * bool(self.report.sites)

    def tensor(self, parameter: Parameter) -> str:
        """The type of a parameter's tensor."""
        if isinstance(parameter.type, ScalarType):
            return f"tensor<{scalar_element(parameter.type.dtype)}>"
        return f"tensor<{self.dims(parameter.type.shape)}{_dtype(parameter.type).mlir}>"

    def memref(self, parameter: Parameter) -> str:
        """The type of a parameter inside the kernel."""
        type = _buffer(parameter)
        return f"memref<{self.dims(type.shape)}{elements.storage_type(_dtype(type))}>"

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


def _of(parameter: Parameter) -> str:
    """The SSA name of a parameter; no other value has this prefix."""
    return f"%of_{mangle(parameter.name)}"


def _size(symbol: Symbol) -> str:
    return f"%size_{mangle(symbol.name)}"


def _buffer(parameter: Parameter) -> BufferType:
    assert isinstance(parameter.type, BufferType)
    return parameter.type


def _dtype(type: BufferType) -> Dtype:
    assert isinstance(type.dtype, Dtype)
    return type.dtype


# The executable


def _body(
    program: KernelProgram, facts: Facts, layout: Layout, name: str, target: Target
) -> list[str]:
    known: dict[Symbol, Index] = {s: Value(_size(s), "index") for s in layout.sizes}
    emitter = Emitter(
        program.name, facts, known, vector_bytes=target.vector_bytes, has_amx=target.has_amx
    )
    w = emitter.w
    w.depth = 1
    _bind(emitter, program, layout)
    grid = [emitter.index(count) for count in program.grid]
    total: Index = 1
    for count in grid:
        total = w.mul(total, count)
    first, last = Value("%first_range", "index"), Value("%last_range", "index")
    groups = Value("%groups", "index")
    start, stop = (w.floordiv(w.mul(one, total), groups) for one in (first, last))
    with w.loop(start, stop) as loop, emitter.scope():
        emitter.number = loop.counter
        rest: Index = loop.counter
        for axis in range(len(grid) - 1, -1, -1):
            own = w.mod(rest, grid[axis]) if axis else rest
            emitter.known[Symbol(f"program_id({axis})", "program", axis)] = own
            rest = w.floordiv(rest, grid[axis]) if axis else rest
        emitter.region(program.graph)
    layout.scratch, layout.stack_bytes = emitter.scratch, emitter.stack
    layout.report = MessageTable(tuple(emitter.sites), tuple(emitter.alarms))
    layout.workgroups = 1 if emitter.is_serial else WORKGROUPS
    layout.steps = tuple(emitter.plan.steps.values())
    return _executable(layout, name, w)


def _bind(emitter: Emitter, program: KernelProgram, layout: Layout) -> None:
    """Bind the placeholders of the graph to buffers and scalars."""
    writable = {p.name for p in (*layout.inouts, *layout.filled, *layout.outputs)}
    for parameter, node in zip(program.parameters, program.graph.nodes, strict=False):
        type = parameter.type
        if isinstance(type, ScalarType):
            emitter.values[node] = _scalar(emitter, parameter)
            continue
        if type.usage == "temporary":
            buffer = emitter.allocate(type.shape, _dtype(type))
            name, memref = buffer.name, buffer.type
        else:
            name, memref = _of(parameter), layout.memref(parameter)
        is_written = parameter.name in writable or type.usage == "temporary"
        emitter.values[node] = Source(
            name, memref, emitter.sizes(type.shape), _dtype(type), is_written
        )


def _scalar(emitter: Emitter, parameter: Parameter) -> TileValue:
    w, dtype = emitter.w, parameter.type.dtype
    assert isinstance(dtype, Dtype)
    element = scalar_element(dtype)
    raw = w.load(_of(parameter), f"memref<{element}>", [], element, 0)
    value = (
        elements.from_storage(w, raw, dtype)
        if dtype.kind == "bool"
        else elements.round_to(w, raw, dtype)
    )
    return TileValue((), dtype, lambda coords: value)


def _executable(layout: Layout, name: str, w: Writer) -> list[str]:
    operands = [*layout.scalars, *layout.inputs, *layout.inouts, *layout.filled]
    spans = [_span(layout, parameter) for parameter in operands]
    spans += [Span(word.name, word.memref, ()) for word in layout.words]
    spans += [_span(layout, parameter) for parameter in layout.outputs]
    spans += _scratch_spans(layout)
    bindings = dict.fromkeys(span.binding or span.name for span in spans)
    arguments = ["%groups: index", *(f"{_size(s)}: index" for s in layout.sizes)]
    arguments += [f"%bound_{binding}: !stream.binding" for binding in bindings]
    head = Writer(constants=w.constants, top=w.top, count=10**6)
    spanned = []
    for span in spans:
        sizes = ", ".join(str(_emit_size(head, layout, dim)) for dim in span.open)
        spanned.append(
            f"%{span.name} = stream.binding.subspan %bound_{span.binding or span.name}"
            f"[{head.index(_emit_size(head, layout, span.start))}] : "
            f"!stream.binding -> {span.type}{f'{{{sizes}}}' if span.open else ''}"
        )
    return [
        f"stream.executable private @{name}_code {{",
        f"stream.executable.export public @{name}_code workgroups(%n: index)"
        " -> (index, index, index) {",
        "  %one = arith.constant 1 : index",
        f"  %reserved = arith.constant {RESERVED} : index",
        "  %count = arith.muli %n, %reserved : index",
        "  stream.return %count, %one, %one : index, index, index",
        "}",
        "builtin.module {",
        f"func.func @{name}_code({', '.join(arguments)}) attributes {{{DISPATCH_ATTRIBUTES}}} {{",
        "%id = stream.dispatch.workgroup.id[0] : index",
        f"%reserved = arith.constant {RESERVED} : index",
        f"%before_next = arith.constant {RESERVED - 1} : index",
        "%workgroup = arith.divui %id, %reserved : index",
        "%above = arith.addi %id, %before_next : index",
        "%first_range = arith.divui %above, %reserved : index",
        "%one_more = arith.constant 1 : index",
        "%last_range = arith.addi %workgroup, %one_more : index",
        *w.top,
        *head.lines,
        *spanned,
        *w.lines,
        "return",
        "}",
        "}",
        "}",
    ]


@dataclass(frozen=True)
class Span:
    """A memref in a binding: its name, its type, and the dynamic sizes of the type."""

    name: str
    type: str
    open: Sequence[Expr]
    start: Expr = ZERO  # in bytes
    binding: str = ""  # if its name is not that of the memref


def _span(layout: Layout, parameter: Parameter) -> Span:
    if isinstance(parameter.type, ScalarType):
        return Span(
            _of(parameter).removeprefix("%"), f"memref<{scalar_element(parameter.type.dtype)}>", ()
        )
    return Span(
        _of(parameter).removeprefix("%"),
        layout.memref(parameter),
        layout.open(parameter.type.shape),
    )


def _scratch_spans(layout: Layout) -> list[Span]:
    """The scratch buffers of a workgroup, consecutive in one binding: bindings are few."""
    workgroup = Expr((((Symbol("%workgroup", "data"),), 1),))
    start = _scratch_bytes(layout) * workgroup
    spans = []
    for scratch in layout.scratch:
        type = f"memref<{layout.dims(scratch.shape)}{scratch.element}>"
        name, open_ = scratch.name.removeprefix("%"), layout.open(scratch.shape)
        spans.append(Span(name, type, open_, start, "scratch"))
        start = start + scratch.bytes
    return spans


def _scratch_bytes(layout: Layout) -> Expr:
    return sum((scratch.bytes for scratch in layout.scratch), start=ZERO)


def _emit_size(w: Writer, layout: Layout, expr: Expr) -> Index:
    """Compute a size expression from the size arguments."""
    known: dict[Symbol, Index] = {s: Value(_size(s), "index") for s in layout.sizes}
    known[Symbol("%workgroup", "data")] = Value("%workgroup", "index")
    emitter = Emitter("", layout.facts, known, w)
    return w.index(emitter.index(expr))


# The launch function


def _function(program: KernelProgram, layout: Layout, name: str, public: bool) -> list[str]:
    """Write the function that launches the executable; a public one returns messages too."""
    w = Writer()
    passed = [p for p in program.parameters if p.is_passed]
    sizes = _sizes(w, layout, passed)
    host = Emitter("", layout.facts, dict(sizes), w)
    total: Index = 1
    for count in program.grid:
        total = w.mul(total, host.index(count))
    groups = w.index(w.max(w.min(total, layout.workgroups), 1))
    operands = [Operand("index", str(groups))]
    operands += [Operand("index", str(w.index(sizes[s]))) for s in layout.sizes]
    read = (*layout.scalars, *layout.inputs)
    aliased = [] if public else _may_alias(layout)
    barriers = {p.name: _barrier(w, layout, p) for p in aliased}
    operands += [_operand(host, layout, p, barriers.get(p.name, _of(p))) for p in read]
    tied = [_operand(host, layout, p, _of(p)) for p in layout.inouts]
    tied += [_operand(host, layout, p, _fill(host, layout, p)) for p in layout.filled]
    tied += [_words(host, word) for word in layout.words]
    made = [
        f"{layout.tensor(p)}{_format_dims(host, layout.open(_shape(p)))}" for p in layout.outputs
    ]
    if layout.scratch:
        total = w.mul(groups, host.index(_scratch_bytes(layout)))
        made.append(f"tensor<?xi8>{{{w.index(total)}}}")
    launched = ", ".join([*(f"{operand.name}{operand.sizes}" for operand in tied), *made])
    given = [*operands, *tied]
    names = [f"%made{place}" for place in range(len(tied) + len(made))]
    w.line(
        f"{', '.join(names)} = flow.dispatch @{name}_code::@{name}_code[{groups}]"
        f"({', '.join(o.name for o in given)}) : ({', '.join(o.type_and_sizes for o in given)})"
        f" -> ({launched})"
    )
    results = _results(program, layout, names, public)
    if not public:
        for p in aliased:
            _barrier(w, layout, p)
        _check_alarms(w, layout, names)
    arguments = ", ".join(f"{_of(p)}: {layout.tensor(p)}" for p in passed)
    gives = ", ".join(type for _, type in results)
    return [
        f"func.func {'public' if public else 'private'} @{name}({arguments}) -> ({gives}) {{",
        *w.top,
        *w.lines,
        f"return {', '.join(name for name, _ in results)} : {gives}",
        "}",
    ]


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
    program: KernelProgram, layout: Layout, names: Sequence[str], public: bool
) -> list[tuple[str, str]]:
    """The results of the function: outputs, in-out buffers and messages."""
    tied = [*layout.inouts, *layout.filled]
    ordered = [*(p.name for p in tied), *(word.name for word in layout.words)]
    ordered += [p.name for p in layout.outputs]
    found = dict(zip(ordered, names, strict=False))
    parameters = [*program.of_usage("output"), *layout.inouts]
    results = [(found[p.name], layout.tensor(p)) for p in parameters]
    if public:
        results += [(found[word.name], word.tensor) for word in layout.words]
    return results


def _check_alarms(w: Writer, layout: Layout, names: Sequence[str]) -> None:
    """Fail if an assertion of the kernel failed."""
    if not layout.report.alarms:
        return
    word = names[len(layout.inouts) + len(layout.filled)]
    tensor = layout.words[0].tensor
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
    return str(w.emit(f"util.optimization_barrier {_of(parameter)} : {of}", of))


def _static_bytes(layout: Layout, parameter: Parameter) -> int | None:
    type = _buffer(parameter)
    numbers = [layout.facts.simplify(size).number for size in type.shape]
    known = [number for number in numbers if number is not None]
    return prod(known) * _dtype(type).itemsize if len(known) == len(numbers) else None


def _words(host: Emitter, word: Words) -> Operand:
    made = _splat(host.w, host.w.constant(0, "i64"), word.tensor)
    return Operand(word.tensor, made)


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
    dim = w.emit(f"tensor.dim {_of(axis.parameter)}, {place} : {of}", "index")
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
    return _buffer(parameter).shape


def _format_dims(emitter: Emitter, dims: Sequence[Expr]) -> str:
    listed = ", ".join(str(emitter.w.index(emitter.index(dim))) for dim in dims)
    return f"{{{listed}}}" if dims else ""


def _fill(emitter: Emitter, layout: Layout, parameter: Parameter) -> str:
    """Write the initial value of a filled output."""
    type = _buffer(parameter)
    dtype = _dtype(type)
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
