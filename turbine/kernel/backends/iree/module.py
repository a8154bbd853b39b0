"""A kernel as a module: an executable with its body, and a function that launches it.

Note [Few workgroups]
A grid may have many programs that do little. A workgroup runs a range of them one after the
other, and a launch has at most WORKGROUPS of these, however large the grid is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turbine.dtypes import Dtype
from turbine.kernel.algebra import Expr, Symbol
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.emitter import Emitter, Scratch, Source
from turbine.kernel.backends.iree.rules import RULES
from turbine.kernel.backends.iree.tiles import TileValue
from turbine.kernel.backends.iree.writer import Index, Value, Writer
from turbine.kernel.program import Program
from turbine.kernel.proving import Facts
from turbine.kernel.signature import Parameter
from turbine.kernel.types import BufferType, ScalarType

WORKGROUPS = 32
_PIPELINE = (
    "translation_info = #iree_codegen.translation_info<"
    "pipeline = #iree_cpu.pipeline<BufferOpsTileAndVectorize>>"
)


@dataclass(frozen=True)
class Code:
    """A module, the function in it that takes a call's tensors, and what it gives."""

    text: str
    name: str


def write(program: Program, facts: Facts, name: str, *, public: bool = False) -> Code:
    """A kernel as a module: `name` takes what is passed, and gives outputs and what is in-out."""
    assert RULES
    layout = Layout(program, facts)
    body = _body(program, facts, layout, name)
    text = "\n".join(["module {", *body, *_function(program, layout, name, public), "}"])
    return Code(text, name)


class Layout:
    """The operands and results of a launch, in order."""

    def __init__(self, program: Program, facts: Facts) -> None:
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
            for symbol in facts.simplified(size).symbols
        }
        for count in program.grid:
            open_sizes |= facts.simplified(count).symbols
        self.sizes = sorted(open_sizes, key=str)
        self.scratch: list[Scratch] = []
        self.workgroups = WORKGROUPS

    def tensor(self, parameter: Parameter) -> str:
        """The type of a parameter's tensor."""
        if isinstance(parameter.type, ScalarType):
            return f"tensor<{scalar_element(parameter.type.dtype)}>"
        return f"tensor<{self._dims(parameter.type.shape)}{_dtype(parameter.type).mlir}>"

    def memref(self, parameter: Parameter) -> str:
        """The type of its memory inside the kernel."""
        type = _buffer(parameter)
        return f"memref<{self._dims(type.shape)}{elements.stored(_dtype(type))}>"

    def _dims(self, shape: Sequence[Expr]) -> str:
        numbers = [self.facts.simplified(size).number for size in shape]
        return "".join("?x" if number is None else f"{number}x" for number in numbers)

    def open(self, shape: Sequence[Expr]) -> list[Expr]:
        """The sizes that are not part of the code."""
        simple = [self.facts.simplified(size) for size in shape]
        return [size for size in simple if size.number is None]


def scalar_element(dtype: Dtype) -> str:
    """The type in which a number is passed."""
    if dtype.kind == "bool":
        return "i8"
    return elements.carrier(dtype)


def _buffer(parameter: Parameter) -> BufferType:
    assert isinstance(parameter.type, BufferType)
    return parameter.type


def _dtype(type: BufferType) -> Dtype:
    assert isinstance(type.dtype, Dtype)
    return type.dtype


# The executable


def _body(program: Program, facts: Facts, layout: Layout, name: str) -> list[str]:
    workgroup = Value("%workgroup", "index")
    known: dict[Symbol, Index] = {s: Value(f"%size_{s}", "index") for s in layout.sizes}
    emitter = Emitter(program.name, facts, workgroup, known)
    w = emitter.w
    w.depth = 1
    _bind(emitter, program, layout)
    grid = [emitter.index(count) for count in program.grid]
    total: Index = 1
    for count in grid:
        total = w.mul(total, count)
    groups = Value("%groups", "index")
    share = w.floordiv(w.add(total, w.sub(groups, 1)), groups)
    first = w.mul(workgroup, share)
    end = w.min(w.add(first, share), total)
    with w.loop(first, end) as loop, emitter.scope():
        rest: Index = loop.counter
        for axis in range(len(grid) - 1, -1, -1):
            own = w.mod(rest, grid[axis]) if axis else rest
            emitter.known[Symbol(f"program_id({axis})", "program", axis)] = own
            rest = w.floordiv(rest, grid[axis]) if axis else rest
        emitter.region(program.graph)
    layout.scratch = emitter.scratch
    layout.workgroups = 1 if emitter.is_serial else WORKGROUPS
    return _executable(layout, name, w)


def _bind(emitter: Emitter, program: Program, layout: Layout) -> None:
    """Say what the graph's placeholders are."""
    writable = {p.name for p in (*layout.inouts, *layout.filled, *layout.outputs)}
    for parameter, node in zip(program.parameters, program.graph.nodes, strict=False):
        type = parameter.type
        if isinstance(type, ScalarType):
            emitter.values[node] = _scalar(emitter, parameter)
            continue
        if type.usage == "temporary":
            room = emitter.room(type.shape, _dtype(type))
            name, memref, before = room.name, room.type, room.before
        else:
            name, memref, before = f"%{parameter.name}", layout.memref(parameter), ()
        is_written = parameter.name in writable or type.usage == "temporary"
        emitter.values[node] = Source(
            name, memref, emitter.sizes(type.shape), _dtype(type), is_written, before
        )


def _scalar(emitter: Emitter, parameter: Parameter) -> TileValue:
    w, dtype = emitter.w, parameter.type.dtype
    assert isinstance(dtype, Dtype)
    element = scalar_element(dtype)
    raw = w.load(f"%{parameter.name}", f"memref<{element}>", [], element, 0)
    value = (
        elements.loaded(w, raw, dtype) if dtype.kind == "bool" else elements.rounded(w, raw, dtype)
    )
    return TileValue((), dtype, lambda coords: value)


def _executable(layout: Layout, name: str, w: Writer) -> list[str]:
    bound = [*layout.scalars, *layout.inputs, *layout.inouts, *layout.filled, *layout.outputs]
    arguments = [f"%groups: index", *(f"%size_{s}: index" for s in layout.sizes)]
    arguments += [f"%{p.name}_bound: !stream.binding" for p in bound]
    arguments += [f"%scratch{n}_bound: !stream.binding" for n in range(len(layout.scratch))]
    spans = [_span(layout, parameter) for parameter in bound]
    spans += [_scratch_span(layout, scratch) for scratch in layout.scratch]
    head = Writer(constants=w.constants, top=w.top, count=10**6)
    spanned = []
    for own, result, type, dims in spans:
        sizes = ", ".join(str(_written(head, layout, dim)) for dim in dims)
        braces = f"{{{sizes}}}" if dims else ""
        spanned.append(
            f"{result} = stream.binding.subspan {own}[%zero] : !stream.binding -> {type}{braces}"
        )
    return [
        f"stream.executable private @{name}_code {{",
        f"stream.executable.export public @{name}_code workgroups(%n: index)"
        " -> (index, index, index) {",
        "  %one = arith.constant 1 : index",
        "  stream.return %n, %one, %one : index, index, index",
        "}",
        "builtin.module {",
        f"func.func @{name}_code({', '.join(arguments)}) attributes {{{_PIPELINE}}} {{",
        "%zero = arith.constant 0 : index",
        "%workgroup = stream.dispatch.workgroup.id[0] : index",
        *w.top,
        *head.lines,
        *spanned,
        *w.lines,
        "return",
        "}",
        "}",
        "}",
    ]


def _span(layout: Layout, parameter: Parameter) -> tuple[str, str, str, list[Expr]]:
    name = f"%{parameter.name}"
    if isinstance(parameter.type, ScalarType):
        return f"{name}_bound", name, f"memref<{scalar_element(parameter.type.dtype)}>", []
    return f"{name}_bound", name, layout.memref(parameter), layout.open(parameter.type.shape)


def _scratch_span(layout: Layout, scratch: Scratch) -> tuple[str, str, str, list[Expr]]:
    dims = layout._dims(scratch.shape)
    groups = Expr((((Symbol("%groups", "data"),), 1),))
    open_ = [groups, *layout.open(scratch.shape)]
    return f"{scratch.name}_bound", scratch.name, f"memref<?x{dims}{scratch.element}>", open_


def _written(w: Writer, layout: Layout, expr: Expr) -> Index:
    """A size, computed from those that are passed."""
    known: dict[Symbol, Index] = {s: Value(f"%size_{s}", "index") for s in layout.sizes}
    known[Symbol("%groups", "data")] = Value("%groups", "index")
    emitter = Emitter("", layout.facts, Value("", "index"), known, w)
    return w.index(emitter.index(expr))


# The function that launches it


def _function(program: Program, layout: Layout, name: str, public: bool) -> list[str]:
    w = Writer()
    passed = [p for p in program.parameters if p.is_passed]
    arguments = ", ".join(f"%{p.name}: {layout.tensor(p)}" for p in passed)
    results = [*program.of_usage("output"), *layout.inouts]
    gives = ", ".join(layout.tensor(p) for p in results)
    sizes = _sizes(w, layout, passed)
    known: dict[Symbol, Index] = dict(sizes)
    emitter = Emitter("", layout.facts, Value("", "index"), known, w)
    total: Index = 1
    for count in program.grid:
        total = w.mul(total, emitter.index(count))
    groups = w.index(w.max(w.min(total, layout.workgroups), 1))
    operands = [("index", str(groups), "")]
    operands += [("index", str(w.index(sizes[s])), "") for s in layout.sizes]
    for parameter in (*layout.scalars, *layout.inputs, *layout.inouts):
        operands.append(_operand(emitter, layout, parameter, f"%{parameter.name}"))
    for parameter in layout.filled:
        operands.append(_operand(emitter, layout, parameter, _filled(emitter, layout, parameter)))
    launched = [_result(emitter, layout, p, operands) for p in (*layout.inouts, *layout.filled)]
    launched += [_result(emitter, layout, p, None) for p in layout.outputs]
    launched += [_scratch_result(emitter, layout, s, groups) for s in layout.scratch]
    names = {
        p.name: f"%made{place}"
        for place, p in enumerate((*layout.inouts, *layout.filled, *layout.outputs))
    }
    made = ", ".join(f"%made{place}" for place in range(len(launched)))
    given = ", ".join(operand for _, operand, _ in operands)
    types = ", ".join(f"{type}{dims}" for type, _, dims in operands)
    w.line(
        f"{made} = flow.dispatch @{name}_code::@{name}_code[{groups}]({given}) : ({types})"
        f" -> ({', '.join(launched)})"
    )
    returned = ", ".join(names[p.name] for p in results)
    visibility = "public" if public else "private"
    return [
        f"func.func {visibility} @{name}({arguments}) -> ({gives}) {{",
        *w.top,
        *w.lines,
        f"return {returned} : {gives}",
        "}",
    ]


def _sizes(w: Writer, layout: Layout, passed: Sequence[Parameter]) -> dict[Symbol, Value]:
    """The sizes that are not part of the code, from the tensors that are passed."""
    found: dict[Symbol, Value] = {}
    pending = [
        (parameter, axis, layout.facts.simplified(size))
        for parameter in passed
        if isinstance(parameter.type, BufferType)
        for axis, size in enumerate(parameter.type.shape)
    ]
    # Plain symbols first: an expression may need what they tell.
    for parameter, axis, size in sorted(pending, key=lambda row: len(row[2].terms)):
        unknown = [s for s in size.symbols if s not in found]
        if len(unknown) == 1:
            found[unknown[0]] = _solved(w, layout, parameter, axis, size, unknown[0], found)
    return found


def _solved(
    w: Writer,
    layout: Layout,
    parameter: Parameter,
    axis: int,
    size: Expr,
    unknown: Symbol,
    found: dict[Symbol, Value],
) -> Value:
    """The symbol in a size that is linear in it."""
    place = w.constant(axis, "index")
    dim = w.emit(f"tensor.dim %{parameter.name}, {place} : {layout.tensor(parameter)}", "index")
    start = size.substitute({unknown: 0})
    slope = size.substitute({unknown: 1}) - start
    emitter = Emitter("", layout.facts, Value("", "index"), dict(found), w)
    above = w.sub(dim, emitter.index(start))
    return w.index(w.floordiv(above, emitter.index(slope)))


def _operand(
    emitter: Emitter, layout: Layout, parameter: Parameter, name: str
) -> tuple[str, str, str]:
    dims = [] if isinstance(parameter.type, ScalarType) else layout.open(parameter.type.shape)
    return layout.tensor(parameter), name, _braced(emitter, dims)


def _braced(emitter: Emitter, dims: Sequence[Expr]) -> str:
    listed = ", ".join(str(emitter.w.index(emitter.index(dim))) for dim in dims)
    return f"{{{listed}}}" if dims else ""


def _filled(emitter: Emitter, layout: Layout, parameter: Parameter) -> str:
    """A tensor that holds one number everywhere."""
    type = _buffer(parameter)
    dtype = _dtype(type)
    assert type.fill is not None
    tensor = layout.tensor(parameter)
    number = _host_number(emitter.w, type.fill, dtype)
    dims = _braced(emitter, layout.open(type.shape))
    value = emitter.w.emit(f"flow.tensor.splat {number} : {tensor}{dims}", tensor)
    return str(value)


def _host_number(w: Writer, number: float, dtype: Dtype) -> Value:
    if dtype.kind == "float" and dtype.bits < 32:
        value = float(number)
        return w.emit(f"arith.constant {value:e} : {dtype.mlir}", dtype.mlir)
    return w.constant(number, dtype.mlir)


def _result(
    emitter: Emitter,
    layout: Layout,
    parameter: Parameter,
    operands: Sequence[tuple[str, str, str]] | None,
) -> str:
    type = layout.tensor(parameter)
    dims = _braced(emitter, layout.open(_buffer(parameter).shape))
    if operands is None:
        return f"{type}{dims}"
    own = _tied(operands, layout, parameter)
    return f"{own}"


def _tied(operands: Sequence[tuple[str, str, str]], layout: Layout, parameter: Parameter) -> str:
    """The operand whose memory a result is in."""
    ties = [*layout.inouts, *layout.filled]
    place = len(operands) - len(ties) + [p.name for p in ties].index(parameter.name)
    return operands[place][1]


def _scratch_result(emitter: Emitter, layout: Layout, scratch: Scratch, groups: Value) -> str:
    dims = layout._dims(scratch.shape)
    sizes = [str(groups)]
    sizes += [str(emitter.w.index(emitter.index(d))) for d in layout.open(scratch.shape)]
    return f"tensor<?x{dims}{scratch.element}>{{{', '.join(sizes)}}}"
