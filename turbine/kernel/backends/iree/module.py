"""Write the MLIR module of a kernel: an executable, and the function of launch.py.

Note [Few workgroups]
A grid may have many small programs. A workgroup runs a range of them in sequence, and a launch has
at most WORKGROUPS workgroups, however large the grid is.

Note [Workgroups that do nothing]
A worker of IREE reserves RESERVED consecutive workgroups if there are as many for each worker. Two
workers would share 24 workgroups 16 to 8. So only the first of RESERVED runs programs.

Note [Scratch memory in caches]
The programs of a workgroup write to the same scratch memory, which stays in the caches of its core.
So kernels with large scratch memory have a workgroup for each worker of the device, if all of their
programs take equally long: others are shared among workers in smaller parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turbine import errors
from turbine.algebra import ZERO, Expr, Symbol
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.emitter import WORKGROUPS, Emitter, Scratch, Source
from turbine.kernel.backends.iree.launch import (
    Launch,
    Layout,
    argument_name,
    dtype_of,
    scalar_element,
    size_name,
    write_function,
)
from turbine.kernel.backends.iree.plan import Step
from turbine.kernel.backends.iree.rules import RULES
from turbine.kernel.backends.iree.tiles import TileValue
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import MessageTable
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import Parameter
from turbine.kernel.trace.types import ScalarType
from turbine.mlir.writer import Index, Value, Writer
from turbine.target import Target

# Limits of an IREE dispatch.
_MOST_BINDINGS, _MOST_SIZES = 32, 31
# Bytes of scratch memory of a workgroup that count as large.
_LARGE_SCRATCH = 1 << 15
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
            hint='kernels run on CPUs and NVIDIA GPUs: compile for target="cpu" or "cuda:sm_80"',
        )
    layout = Layout(program, facts)
    body = _body(program, facts, layout, name, target)
    _check_count(program, layout)
    function = write_function(program, layout, _launch(layout, name), name, public=public)
    text = "\n".join(["module {", *body, *function, "}"])
    return Code(
        text,
        name,
        layout.report,
        layout.stack_bytes,
        tuple(layout.scratch),
        layout.workgroups,
        layout.steps,
    )


def _launch(layout: Layout, name: str) -> Launch:
    scratch = [("i8", _scratch_bytes(layout))] if layout.scratch else []
    code = f"@{name}_code::@{name}_code"
    return Launch(
        code,
        layout.sizes,
        most_workgroups=layout.workgroups,
        scratch=scratch,
        one_per_worker=layout.one_per_worker,
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


# The executable


def _body(
    program: KernelProgram, facts: Facts, layout: Layout, name: str, target: Target
) -> list[str]:
    known: dict[Symbol, Index] = {s: Value(size_name(s), "index") for s in layout.sizes}
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
    scratch = _scratch_bytes(layout).number
    is_large = scratch is None or scratch >= _LARGE_SCRATCH
    layout.one_per_worker = is_large and not emitter.is_serial and not emitter.is_uneven
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
            buffer = emitter.allocate(type.shape, dtype_of(type))
            name, memref = buffer.name, buffer.type
        else:
            name, memref = argument_name(parameter), layout.memref(parameter)
        is_written = parameter.name in writable or type.usage == "temporary"
        emitter.values[node] = Source(
            name, memref, emitter.sizes(type.shape), dtype_of(type), is_written
        )


def _scalar(emitter: Emitter, parameter: Parameter) -> TileValue:
    w, dtype = emitter.w, parameter.type.dtype
    assert isinstance(dtype, Dtype)
    element = scalar_element(dtype)
    raw = w.load(argument_name(parameter), f"memref<{element}>", [], element, 0)
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
    arguments = ["%groups: index", *(f"{size_name(s)}: index" for s in layout.sizes)]
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
    name = argument_name(parameter).removeprefix("%")
    if isinstance(parameter.type, ScalarType):
        return Span(name, f"memref<{scalar_element(parameter.type.dtype)}>", ())
    return Span(name, layout.memref(parameter), layout.open(parameter.type.shape))


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
    known: dict[Symbol, Index] = {s: Value(size_name(s), "index") for s in layout.sizes}
    known[Symbol("%workgroup", "data")] = Value("%workgroup", "index")
    emitter = Emitter("", layout.facts, known, w)
    return w.index(emitter.index(expr))
