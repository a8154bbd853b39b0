"""Assemble the Triton source of a program: helper functions, the kernel, and its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from torch import fx

from turbine.algebra import ONE, Expr, Symbol, symbol
from turbine.dtypes import Dtype
from turbine.kernel.backends.triton import rules as rules
from turbine.kernel.backends.triton.elements import ARGUMENT_TYPES, TYPES, is_small
from turbine.kernel.backends.triton.emitter import (
    Emitter,
    Source,
    Value,
    dot_sizes,
    magnitude,
    power_of_two,
)
from turbine.kernel.backends.triton.schedule import (
    SHARED_BYTES,
    Options,
    Schedule,
    choose_schedule,
    is_grouped,
)
from turbine.kernel.lang import atomics, memory
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import MessageTable
from turbine.kernel.program.program import KernelProgram, nodes_of
from turbine.kernel.program.signature import Parameter
from turbine.kernel.trace.types import BufferType, ScalarType, TileType

# Elements from which on an offset may not fit 32 bits; blocks reach a little beyond a tensor.
LARGE = 2**31 - 2**24


@dataclass(frozen=True)
class Layout:
    """What code assumes of a call beside its facts."""

    padded: tuple[tuple[Expr, int], ...] = ()  # sizes of tiles that are not static: powers of two
    is_wide: bool = False  # whether indices may need 64 bits
    # Strides of tensors that are not contiguous: a number if it is 0 or 1, otherwise an argument.
    strided: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    # Whether IREE launches it: addresses come first, as they are bound, numbers are in memory,
    # and sizes have 32 bits.
    is_embedded: bool = False


@dataclass(frozen=True)
class Argument:
    """An argument of the code: a buffer, a size, a stride or a number."""

    name: str
    kind: str  # "buffer", "stride", "number", "size", "alarms" or "log"
    type: str  # as in Triton's signatures
    of: str = ""  # the parameter
    axis: int = 0
    size: Symbol | None = None
    is_made: bool = False  # whether a launch allocates it


@dataclass(frozen=True)
class Code:
    """The source of a kernel, and how it is launched."""

    name: str
    text: str
    arguments: tuple[Argument, ...]
    schedule: Schedule
    report: MessageTable = field(default_factory=MessageTable)


def tile_sizes(program: KernelProgram, facts: Facts) -> list[Expr]:
    """The sizes of tiles that are not static."""
    types = [
        type
        for node in nodes_of(program.graph)
        for type in (node.meta.get("type"), *node.meta.get("types", ()))
    ]
    sizes = [facts.simplify(s) for type in types if isinstance(type, TileType) for s in type.shape]
    return [size for size in dict.fromkeys(sizes) if size.number is None]


def largest_offset(program: KernelProgram, sizes: Mapping[Symbol, int]) -> int:
    """The largest magnitude of the places where blocks of a call start, as far as it is known."""
    facts = Facts(sizes, {}, program.ranges)
    found = [0]
    for node in nodes_of(program.graph):
        if node.target in (memory.load, memory.store, atomics.atomic_block):
            found += [magnitude(expr, facts, None) or 0 for expr in node.args[1]]  # type: ignore[arg-type, union-attr]
    return max(found)


def padded_sizes(
    program: KernelProgram, facts: Facts, sizes: Mapping[Symbol, int]
) -> tuple[tuple[Expr, int], ...]:
    """The powers of two to which the tiles of a call are padded."""
    return tuple((size, power_of_two(size.evaluate(sizes))) for size in tile_sizes(program, facts))


def write(
    program: KernelProgram,
    facts: Facts,
    layout: Layout,
    shared_bytes: int = SHARED_BYTES,
    options: Options | None = None,
) -> Code:
    """Write a program as Triton source, for a GPU with so much shared memory."""
    schedule = choose_schedule(program, facts, layout.padded, shared_bytes, options)
    emitter = Emitter(
        program.name,
        facts,
        dict(layout.padded),
        layout.is_wide,
        least=dot_sizes(program.graph, facts),
    )
    name = emitter.name(program.name)
    parameters = {p.name: emitter.name(p.name) for p in program.parameters}
    _bind_parameters(emitter, program, layout, parameters)
    _write_program_ids(emitter, program, schedule.group_rows)
    start = len(emitter.lines)
    emitter.run(program.graph)
    emitter.lines[start:start] = [
        f"    {lane} = tl.arange(0, {count})" for count, lane in emitter.lanes.items()
    ]
    if layout.is_embedded and layout.is_wide:
        names = [emitter.symbols[size] for size in emitter.sizes]
        emitter.lines[:0] = [f"    {name} = {name}.to(tl.int64)" for name in names]
    arguments = tuple(_arguments(emitter, program, layout, parameters))
    if layout.is_embedded:
        arguments = tuple(sorted(arguments, key=partial(_binding_order, program)))
    head = f"def {name}({', '.join(argument.name for argument in arguments)}):"
    parts = [_HEAD.format(about=_about(program))]
    parts += [f"@triton.jit\n{text}" for text in emitter.functions.values()]
    parts.append("\n".join(["@triton.jit", head, *emitter.lines, ""]))
    text = "\n\n".join(parts)
    report = MessageTable(tuple(emitter.sites), tuple(emitter.alarms))
    return Code(name, text, arguments, schedule, report)


_HEAD = '''\
"""{about}"""

import triton
import triton.language as tl
from triton.language.extra import libdevice
'''


def _about(program: KernelProgram) -> str:
    return f"Kernel {program.name}, as Turbine compiles it for a GPU."


def _bind_parameters(
    emitter: Emitter, program: KernelProgram, layout: Layout, names: Mapping[str, str]
) -> None:
    """Give the kernel's placeholders their sources and values."""
    strided = dict(layout.strided)
    updated = _updated(program)
    for parameter, node in zip(program.parameters, program.graph.nodes, strict=False):
        name = names[parameter.name]
        if isinstance(parameter.type, ScalarType):
            if layout.is_embedded:
                address, name = name, emitter.name(f"{name}_value")
                emitter.emit(f"{name} = tl.load({address})")
            emitter.values[node] = _number(parameter.type.dtype, name)
            continue
        shape, dtype = parameter.type.shape, parameter.type.dtype
        assert isinstance(dtype, Dtype)
        emitter.type(dtype)
        if parameter.name in strided:
            strides = _given_strides(emitter, name, strided[parameter.name])
        else:
            strides = row_major(shape)
        if parameter.type.usage == "temporary":
            total = reduce(lambda product, size: product * size, shape, ONE)
            name = emitter.name(f"{name}_of_program")
            emitter.emit(f"{name} = {names[parameter.name]} + program * {emitter.factor(total)}")
        emitter.sources[node] = Source(name, shape, strides, dtype, parameter.name in updated)


def row_major(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """The strides of a contiguous tensor."""
    strides, stride = [], ONE
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return tuple(reversed(strides))


def _given_strides(emitter: Emitter, name: str, known: Sequence[int | None]) -> tuple[Expr, ...]:
    strides = []
    for axis, number in enumerate(known):
        if number is not None:
            strides.append(ONE * number)
            continue
        (stride,) = symbol(f"{name}_stride{axis}", "stride").symbols
        emitter.symbols[stride] = emitter.name(stride.name)
        strides.append(symbol(stride.name, "stride"))
    return tuple(strides)


def _updated(program: KernelProgram) -> set[str]:
    """The buffers that a program both reads and writes."""
    read, written = set(), set()
    for node in nodes_of(program.graph):
        if node.target in (memory.load, memory.gather):
            read.add(_buffer(node))
        elif node.target in (
            memory.store,
            memory.scatter,
            atomics.atomic_block,
            atomics.atomic_scatter,
        ):
            written.add(_buffer(node))
    return read & written


def _buffer(node: fx.Node) -> str:
    buffer = node.args[0]
    assert isinstance(buffer, fx.Node)
    name: str = buffer.meta["buffer"]
    return name


def _number(dtype: Dtype, name: str) -> Value:
    """A number that is passed, in its own dtype."""
    if dtype.kind == "bool":
        return Value(f"({name} != 0)", (), dtype)
    return Value(f"tl.cast({name}, {TYPES[dtype.name]})", (), dtype)


def _number_type(dtype: Dtype) -> str:
    if dtype.kind == "float":
        return "fp64" if dtype.bits == 64 else "fp32"
    if dtype.kind == "bool" or dtype.bits < 32:
        return "i32"
    return ARGUMENT_TYPES[dtype.name]


def _write_program_ids(emitter: Emitter, program: KernelProgram, group_rows: int) -> None:
    """Write the ids of the program along the axes of the grid, which is launched as one axis."""
    grid = program.grid
    symbols = [Symbol(f"program_id({axis})", "program", axis) for axis in range(len(grid))]
    first = "    program = tl.program_id(0)" + (".to(tl.int64)" if emitter.is_wide else "")
    emitter.lines.insert(0, first)
    if len(grid) == 1:
        emitter.symbols[symbols[0]] = "program"
    if len(grid) < 2:
        return
    names = [emitter.name(f"program_{axis}") for axis in range(len(grid))]
    counts = ["" if not axis else emitter.factor(count) for axis, count in enumerate(grid)]
    rest, last = "program", len(grid) - 1
    if is_grouped(program):
        rest = _write_grouped(emitter, grid, names, group_rows)
        last -= 2
    for axis in range(last, 0, -1):
        emitter.emit(f"{names[axis]} = {rest} % {counts[axis]}")
        before, rest = rest, emitter.name("rest") if axis > 1 else names[0]
        emitter.emit(f"{rest} = {before} // {counts[axis]}")
    if last == 0 and is_grouped(program):
        emitter.emit(f"{names[0]} = {rest}")
    emitter.symbols.update(zip(symbols, names, strict=True))
    if is_grouped(program):
        emitter.number = _row_by_row(emitter, names, counts)


def _write_grouped(
    emitter: Emitter, grid: Sequence[Expr], names: Sequence[str], group_rows: int
) -> str:
    """Order the programs of the last two axes by groups of rows; return the number of the rest."""
    rows, columns = emitter.factor(grid[-2]), emitter.factor(grid[-1])
    row, column = names[-2:]
    plane = "program"
    if len(grid) > 2:
        plane = emitter.name("plane")
        emitter.emit(f"{plane} = program % ({rows} * {columns})")
    group, first, height = (emitter.name(n) for n in ("group", "first_row", "group_rows"))
    emitter.emit(f"{group} = {plane} // ({group_rows} * {columns})")
    emitter.emit(f"{first} = {group} * {group_rows}")
    emitter.emit(f"{height} = tl.minimum({rows} - {first}, {group_rows})")
    emitter.emit(f"{row} = {first} + {plane} % ({group_rows} * {columns}) % {height}")
    emitter.emit(f"{column} = {plane} % ({group_rows} * {columns}) // {height}")
    if len(grid) == 2:
        return plane
    rest = emitter.name("rest")
    emitter.emit(f"{rest} = program // ({rows} * {columns})")
    return rest


def _row_by_row(emitter: Emitter, names: Sequence[str], counts: Sequence[str]) -> str:
    """The number of a program row by row."""
    text = names[0]
    for name, count in zip(names[1:], counts[1:], strict=True):
        text = f"({text} * {count} + {name})"
    return text


def _arguments(
    emitter: Emitter, program: KernelProgram, layout: Layout, names: Mapping[str, str]
) -> Iterator[Argument]:
    whole = "i64" if layout.is_wide and not layout.is_embedded else "i32"
    for parameter in program.parameters:
        name = names[parameter.name]
        if isinstance(parameter.type, BufferType):
            is_made = parameter.type.usage in ("output", "temporary")
            type = f"*{_element(parameter)}"
            yield Argument(name, "buffer", type, parameter.name, is_made=is_made)
        else:
            assert isinstance(parameter.type.dtype, Dtype)
            type = _number_type(parameter.type.dtype)
            if layout.is_embedded:
                type = _tensor_type(parameter.type.dtype)
            yield Argument(name, "number", type, parameter.name)
    for of, strides in layout.strided:
        for axis, number in enumerate(strides):
            if number is None:
                stride = Symbol(f"{names[of]}_stride{axis}", "stride")
                yield Argument(emitter.symbols[stride], "stride", whole, of, axis)
    for size in emitter.sizes:
        yield Argument(emitter.symbols[size], "size", whole, size=size)
    if emitter.alarms:
        yield Argument("alarms", "alarms", "*i64")
    if emitter.sites:
        yield Argument("log", "log", "*i64")


def _binding_order(program: KernelProgram, argument: Argument) -> int:
    """The place of an argument among those that IREE passes: see iree/launch.py."""
    if argument.kind in _ORDER:
        return _ORDER[argument.kind]
    (type,) = (p.type for p in program.parameters if p.name == argument.of)
    assert isinstance(type, BufferType)
    return _ORDER["filled" if type.fill is not None else type.usage]


_KINDS = ("number", "input", "inout", "filled", "alarms", "log", "output", "temporary", "size")
_ORDER = {kind: place for place, kind in enumerate(_KINDS)}


def _tensor_type(dtype: Dtype) -> str:
    """The type of a number in memory, as iree/launch.py passes it."""
    if dtype.kind == "bool":
        return "*i8"
    return "*fp32" if is_small(dtype) else f"*{ARGUMENT_TYPES[dtype.name]}"


def _element(parameter: Parameter) -> str:
    assert isinstance(parameter.type.dtype, Dtype)
    return ARGUMENT_TYPES[parameter.type.dtype.name]
