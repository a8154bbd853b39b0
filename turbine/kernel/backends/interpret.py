"""Run a kernel's graph with torch, program by program: each op by its meaning.

Slow, and meant to be looked into: what is read outside a buffer or before it was written is nan,
two programs that write one element, or of which one writes what the other reads, are reported, and
errors name the user's line.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from turbine import errors
from turbine.algebra import Expr, Symbol, as_expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.element_types import call_narrowed, widen
from turbine.kernel.lang import (
    arithmetic,
    atomics,
    control_flow,
    debugging,
    index_checks,
    memory,
    products,
    scans,
)
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.program import messages
from turbine.kernel.program.program import Program
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.tracer import IndexExpr
from turbine.kernel.trace.types import BufferType, tensor_of
from turbine.kernel.trace.validity import Bound

# Called with each node that was computed, and its value.
Watch = Callable[[fx.Node, Any], None]


@dataclass
class Memory:
    """A buffer: its tensor, and which program wrote each element (-1: none, -2: the caller).

    `reader` is the one that read it (-1: none, -2: several).
    """

    name: str
    tensor: Tensor
    writer: Tensor
    reader: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.reader = torch.full_like(self.writer, _NOBODY)

    @staticmethod
    def of(name: str, type: BufferType, given: Tensor | None, shape: Sequence[int]) -> Memory:
        """A tensor of the caller's, or one that was not written yet."""
        if given is not None:
            return Memory(name, given, torch.full(given.shape, _CALLER))
        assert isinstance(type.dtype, Dtype)
        if type.fill is not None:
            filled = tensor_of(type.fill, type.dtype).repeat(tuple(shape))
            return Memory(name, filled, torch.full(filled.shape, _CALLER))
        empty = fill_poison(torch.empty(tuple(shape), dtype=type.dtype.torch))
        return Memory(name, empty, torch.full(empty.shape, _NOBODY))


_NOBODY, _CALLER, _SEVERAL = -1, -2, -2
# What is changed by atomics: by those of one program, below, or of several.
_SHARED = -(2**62)


def _by_atomic(number: int) -> int:
    return -3 - number


def fill_poison(tensor: Tensor) -> Tensor:
    """The tensor with what nobody should read: nan, or a number that is unlikely."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype is torch.bool else 85)


def run(
    program: Program,
    sizes: Mapping[Symbol, int],
    args: Mapping[str, Any],
    watch: Watch | None = None,
) -> dict[str, Tensor]:
    """Run every program; gives the outputs by name, and changes what is in-out."""
    memories = run_in_memory(program, sizes, args, watch)
    return {p.name: memories[p.name].tensor for p in program.of_usage("output")}


def run_in_memory(
    program: Program,
    sizes: Mapping[Symbol, int],
    args: Mapping[str, Any],
    watch: Watch | None = None,
) -> dict[str, Memory]:
    """Run every program; gives what its buffers hold then, and who wrote it."""
    memories = {}
    for parameter in program.parameters:
        if isinstance(parameter.type, BufferType):
            shape = [size.evaluate(sizes) for size in parameter.type.shape]
            given = args.get(parameter.name)
            memories[parameter.name] = Memory.of(parameter.name, parameter.type, given, shape)
    grid = [count.evaluate(sizes) for count in program.grid]
    for number, ids in enumerate(itertools.product(*map(range, grid))):
        _renew(memories, program, sizes)
        _run_one(program, sizes, args, memories, (number, ids), watch)
    return memories


def _renew(memories: dict[str, Memory], program: Program, sizes: Mapping[Symbol, int]) -> None:
    """A temporary belongs to one program."""
    for parameter in program.of_usage("temporary"):
        assert isinstance(parameter.type, BufferType)
        shape = [size.evaluate(sizes) for size in parameter.type.shape]
        memories[parameter.name] = Memory.of(parameter.name, parameter.type, None, shape)


def _run_one(
    program: Program,
    sizes: Mapping[Symbol, int],
    args: Mapping[str, Any],
    memories: dict[str, Memory],
    where: tuple[int, tuple[int, ...]],
    watch: Watch | None,
) -> None:
    number, ids = where
    known = dict(sizes)
    known.update({Symbol(f"program_id({a})", "program", a): i for a, i in enumerate(ids)})
    frame = Frame(known, number, ids, watch)
    for parameter, node in zip(program.parameters, program.graph.nodes, strict=False):
        if parameter.name in memories:
            frame.values[node] = memories[parameter.name]
            continue
        dtype = parameter.type.dtype
        assert isinstance(dtype, Dtype)
        frame.values[node] = tensor_of(args[parameter.name], dtype)
    frame.run(program.graph)


@dataclass
class Frame:
    """What one program has computed so far."""

    known: dict[Symbol, int]
    number: int
    ids: tuple[int, ...]
    watch: Watch | None
    values: dict[fx.Node, Any] = field(default_factory=dict)

    def run(self, graph: fx.Graph) -> tuple[Any, ...]:
        """Compute every node of a region; gives what it yields."""
        for node in graph.nodes:
            if node.op == "call_function":
                self.values[node] = self._compute(node)
                if self.watch is not None:
                    self.watch(node, self.values[node])
        return tuple(self.values[node] for node in output_of(graph))

    def _compute(self, node: fx.Node) -> Any:
        made = node.target
        assert isinstance(made, Op)
        special = SPECIAL.get(made)
        try:
            return special(self, node) if special is not None else self._evaluate(node, made)
        except errors.TurbineError:
            raise
        except Exception as error:
            raise errors.KernelError(
                f"{made!r} failed: {error}", where=node.meta.get("line")
            ) from error

    def _evaluate(self, node: fx.Node, made: Op) -> Any:
        args: Any = fx.node.map_arg(tuple(node.args), self.values.__getitem__)
        args = [self.plain(argument) for argument in args]
        keywords = {}
        if "within" in made.signature.parameters:
            operand: Any = node.args[0]
            shape = operand.meta["type"].shape if isinstance(operand, fx.Node) else operand
            keywords["within"] = self.within(node, shape)
        types = node.meta.get("types", node.meta.get("type"))
        return call_narrowed(made, args, keywords, types)

    def plain(self, argument: Any) -> Any:
        """An argument as the meaning takes it: numbers for sizes, torch's dtypes."""
        if isinstance(argument, Expr):
            return argument.evaluate(self.known)
        if isinstance(argument, Dtype):
            return argument.torch
        if isinstance(argument, Memory):
            return argument.tensor
        if isinstance(argument, (tuple, list)):
            return tuple(map(self.plain, argument))
        return argument

    def sizes(self, shape: Sequence[Expr]) -> tuple[int, ...]:
        """A shape in numbers."""
        return tuple(size.evaluate(self.known) for size in shape)

    def within(self, node: fx.Node, shape: Sequence[Expr]) -> Tensor:
        """The lanes, of a tile of this shape, that take part in what a node does."""
        return self.lanes(node.kwargs.get("bounds", ()), node.kwargs.get("masks", ()), shape)

    def lanes(self, bounds: Any, masks: Any, shape: Sequence[Expr]) -> Tensor:
        """The lanes that fulfil conditions."""
        sizes = self.sizes(shape)
        taking = torch.ones(sizes, dtype=torch.bool)
        for bound in bounds:
            taking &= self._inside(bound, sizes)
        for mask in masks:
            taking &= self.values[mask]
        return taking

    def _inside(self, bound: Bound, sizes: Sequence[int]) -> Tensor:
        offset, limit = bound.offset.evaluate(self.known), bound.limit.evaluate(self.known)
        if bound.axis is None:
            return torch.tensor(0 <= offset < limit)
        places = torch.arange(sizes[bound.axis]) + offset
        inside = (places >= 0) & (places < limit)
        return inside.reshape([-1] + [1] * (len(sizes) - 1 - bound.axis))

    def within_region(
        self, body: Body, carried: Sequence[Any], captured: Sequence[fx.Node]
    ) -> tuple[Any, ...]:
        """Run a region with what it carries and what it uses from around it."""
        placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
        around = [self.values[node] for node in captured]
        for place, value in zip(placeholders, [*carried, *around], strict=True):
            self.values[place] = value
        return self.run(body.graph)

    def keep_masked(self, body: Body, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """What a turn of a loop carries on: lanes without a value stay as they were."""
        rows = zip(body.valid, before, after, output_of(body.graph), strict=True)
        return [
            _select(self.lanes(v.bounds, v.masks, node.meta["type"].shape), new, old)
            for v, old, new, node in rows
        ]


def _select(lanes: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """New values where lanes hold one, else the old ones."""
    bits = _BITS.get(new.dtype)
    if bits is None:
        return torch.where(lanes, new, old)
    chosen = torch.where(lanes, new.contiguous().view(bits), old.contiguous().view(bits))
    return chosen.view(new.dtype)


# Ops that need more than the values of their operands


def _args(node: fx.Node) -> Any:
    return node.args


def _each(node: fx.Node, values: Any) -> Any:
    """Values, each with the conditions on its lanes."""
    return zip(values, node.kwargs["bounds"], node.kwargs["masks"], strict=True)  # type: ignore[arg-type]


def _load(frame: Frame, node: fx.Node) -> Tensor:
    buffer, index, shape = _args(node)
    source = frame.values[buffer]
    assert isinstance(source, Memory)
    start, sizes = frame.plain(index), frame.sizes(shape)
    lanes = frame.within(node, shape)
    _check_written(
        frame, node, source, memory.load.meaning(source.writer, start, sizes, lanes), lanes
    )
    if bool(lanes.any()):
        _read(frame, node, source, tuple(map(torch.add, _lane_indices(lanes), start)))
    raw = memory.load.meaning(_readable(source.tensor), start, sizes, lanes)
    return _outside_poisoned(raw.to(source.tensor.dtype), lanes)


def _gather(frame: Frame, node: fx.Node) -> Tensor:
    buffer, names = _args(node)
    source, index = frame.values[buffer], [frame.values[i] for i in names]
    lanes = frame.within(node, node.meta["type"].shape)
    _check_written(frame, node, source, memory.gather.meaning(source.writer, index), lanes)
    _read(frame, node, source, tuple(i.expand(lanes.shape)[lanes] for i in index))
    raw = memory.gather.meaning(_readable(source.tensor), index)
    return _outside_poisoned(raw.to(source.tensor.dtype), lanes)


def _readable(tensor: Tensor) -> Tensor:
    """The tensor, of a type that torch can index."""
    readable: Tensor = widen(tensor)
    return readable


def _outside_poisoned(tile: Tensor, lanes: Tensor) -> Tensor:
    if bool(lanes.all()):
        return tile
    poison = fill_poison(
        torch.empty((), dtype=torch.float32 if tile.dtype.is_floating_point else tile.dtype)
    )
    wide = widen(tile)
    return torch.where(lanes, wide, poison.to(wide.dtype)).to(tile.dtype)


def _check_written(
    frame: Frame, node: fx.Node, source: Memory, writers: Tensor, lanes: Tensor
) -> None:
    if bool(((writers == _NOBODY) & lanes).any()):
        raise errors.KernelError(
            f"program {frame.ids} reads elements of {source.name} that are uninitialized",
            where=node.meta.get("line"),
            hint="write them first, in the same program",
        )


def _read(frame: Frame, node: fx.Node, source: Memory, at: Any) -> None:
    """Take down who reads elements, and complain about what another program wrote."""
    writers, readers = source.writer[at], source.reader[at]
    others = (writers >= 0) & (writers != frame.number)
    if bool(others.any()):
        raise _race_error(frame, node, source, "reads", f"number {int(writers[others][0])} writes")
    is_first = (readers == _NOBODY) | (readers == frame.number)
    source.reader[at] = torch.where(is_first, frame.number, _SEVERAL)


def _check_unread(frame: Frame, node: fx.Node, target: Memory, readers: Tensor) -> None:
    others = (readers != _NOBODY) & (readers != frame.number)
    if bool(others.any()):
        other = int(readers[others][0])
        named = "several read" if other == _SEVERAL else f"number {other} reads"
        raise _race_error(frame, node, target, "writes", named)


def _race_error(
    frame: Frame, node: fx.Node, buffer: Memory, does: str, other: str
) -> errors.KernelError:
    return errors.KernelError(
        f"program number {frame.number}, {frame.ids}, {does} an element of {buffer.name} that "
        f"{other}: the order is undefined",
        where=node.meta.get("line"),
        hint="let each program read what it writes itself; read from an InputBuffer and write to "
        "an OutputBuffer",
    )


def _store(frame: Frame, node: fx.Node) -> None:
    buffer, index, value = _args(node)
    lanes = frame.within(node, value.meta["type"].shape)
    if not bool(lanes.any()):
        return
    places = _lane_indices(lanes)
    at = tuple(place + first for place, first in zip(places, frame.plain(index), strict=True))
    _write(frame, node, frame.values[buffer], at, frame.values[value], places)


def _lane_indices(lanes: Tensor) -> tuple[Tensor, ...]:
    """Which lanes are true, along each axis; of a single lane that is, nothing is to be said."""
    return tuple(torch.nonzero(lanes).T)


def _scatter(frame: Frame, node: fx.Node) -> None:
    buffer, index, value = _args(node)
    lanes = frame.within(node, value.meta["type"].shape)
    at = tuple(frame.values[i][lanes] for i in index)
    places = torch.nonzero(lanes, as_tuple=True)
    _write(frame, node, frame.values[buffer], at, frame.values[value], places)


def _write(
    frame: Frame, node: fx.Node, target: Memory, at: Any, value: Tensor, places: Any
) -> None:
    _check_alone(frame, node, target, target.writer[at])
    _check_unread(frame, node, target, target.reader[at])
    target.writer[at] = frame.number
    bytes_ = _BITS.get(target.tensor.dtype)  # torch cannot index some types
    if bytes_ is None:
        target.tensor[at] = value[places]
    else:
        target.tensor.view(bytes_)[at] = value.contiguous().view(bytes_)[places]


_BITS = {
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def _check_alone(frame: Frame, node: fx.Node, target: Memory, writers: Tensor) -> None:
    by_atomic = writers <= _by_atomic(0)
    numbers = torch.where(by_atomic, _by_atomic(0) - writers, writers)
    others = (by_atomic | (writers >= 0)) & (numbers != frame.number)
    if bool(others.any()):
        other = int(writers[others].flatten()[0])
        named = f"number {other}" if other >= 0 else "one by tkl.atomic_add or the like"
        raise errors.KernelError(
            f"two programs store to one element of {target.name}: {named} and "
            f"{frame.number}, {frame.ids}",
            where=node.meta.get("line"),
            hint="let each program write a part of its own, or use tkl.atomic_add",
        )


def _dot(frame: Frame, node: fx.Node) -> Tensor:
    operands = [frame.values[operand] for operand in _args(node)]
    lanes = [frame.lanes(b, m, v.meta["type"].shape) for v, b, m in _each(node, _args(node)[:2])]
    wide = [widen(operand) for operand in operands]
    product: Tensor = products.dot.meaning(*wide, *lanes)
    return product.to(operands[2].dtype)


def _to_index(frame: Frame, node: fx.Node) -> int:
    value, symbol = _args(node)
    frame.known[symbol] = int(frame.values[value])
    return frame.known[symbol]


def _for(frame: Frame, node: fx.Node) -> list[Any]:
    start, stop, step, init, body, captured = _args(node)
    values = [frame.values[n] for n in init]
    for turn in range(frame.plain(start), frame.plain(stop), step):
        frame.known[body.counter] = turn
        after = frame.within_region(body, values, captured)
        values = frame.keep_masked(body, values, after)
    return values


def _while(frame: Frame, node: fx.Node) -> list[Any]:
    asked, of_asked, init, body, captured = _args(node)
    values = [frame.values[n] for n in init]
    while bool(frame.within_region(asked, values, of_asked)[0]):
        after = frame.within_region(body, values, captured)
        values = frame.keep_masked(body, values, after)
    return values


def _cond(frame: Frame, node: fx.Node) -> list[Any]:
    condition, passed, one, of_one, other, of_other = _args(node)
    body, captured = (one, of_one) if bool(frame.values[condition]) else (other, of_other)
    values = [frame.values[n] for n in passed]
    return list(frame.within_region(body, values, captured))


def _scan(frame: Frame, node: fx.Node) -> tuple[Tensor, ...]:
    operands, axis, reverse, body, captured = _args(node)
    tiles = [frame.values[n] for n in operands]
    lanes = frame.within(node, operands[0].meta["type"].shape)
    results = tuple(tile.clone(memory_format=torch.contiguous_format) for tile in tiles)
    for row in _rows(lanes, axis, bool(reverse)):
        running: Sequence[Tensor] | None = None
        for lane in row:
            here = [tile[lane] for tile in tiles]
            both = None if running is None else [*running, *here]
            running = here if both is None else frame.within_region(body, both, captured)
            for result, value in zip(results, running, strict=True):
                result[lane] = value
    return results


def _reduce(frame: Frame, node: fx.Node) -> tuple[Tensor, ...]:
    operands, axis, starts, body, captured = _args(node)
    tiles = [frame.values[n] for n in operands]
    lanes = frame.within(node, operands[0].meta["type"].shape)
    first = [frame.values[n] for n in starts]
    columns: list[list[Tensor]] = [[] for _ in tiles]
    for row in _rows(lanes, axis):
        so_far: Sequence[Tensor] = first
        for lane in row:
            both = [*so_far, *(tile[lane] for tile in tiles)]
            so_far = frame.within_region(body, both, captured)
        for column, value in zip(columns, so_far, strict=True):
            column.append(value)
    shape = [size for place, size in enumerate(lanes.shape) if place != axis]
    return tuple(
        torch.stack(column).reshape(shape) if column else tile.new_empty(shape)
        for column, tile in zip(columns, tiles, strict=True)
    )


def _rows(lanes: Tensor, axis: int, reverse: bool = False) -> Iterator[list[tuple[int, ...]]]:
    """The lanes that take part, one row along an axis after the other."""
    others = [range(size) for place, size in enumerate(lanes.shape) if place != axis]
    along = range(lanes.shape[axis])
    for row in itertools.product(*others):
        places = [(*row[:axis], n, *row[axis:]) for n in (reversed(along) if reverse else along)]
        yield [place for place in places if bool(lanes[place])]


def _atomic_block(frame: Frame, node: fx.Node) -> Tensor:
    places, index = _places(frame, node), _args(node)[1]
    start = torch.tensor(frame.plain(index), dtype=torch.int64)
    return _atomic(frame, node, places, places + start)


def _atomic_scatter(frame: Frame, node: fx.Node) -> Tensor:
    places, index = _places(frame, node), _args(node)[1]
    named = [frame.values[i][tuple(places.T)] for i in index]
    return _atomic(frame, node, places, torch.stack(named, dim=1))


def _places(frame: Frame, node: fx.Node) -> Tensor:
    return torch.nonzero(frame.within(node, _args(node)[2].meta["type"].shape))


def _atomic(frame: Frame, node: fx.Node, places: Tensor, targets: Tensor) -> Tensor:
    buffer, _, value, kind = _args(node)
    target = frame.values[buffer]
    at = tuple(targets.T)
    writers = target.writer[at]
    _check_alone(frame, node, target, torch.where(writers >= 0, writers, frame.number))
    mine = _by_atomic(frame.number)
    is_shared = (writers <= _by_atomic(0)) & (writers != mine)
    target.writer[at] = torch.where(writers >= 0, writers, torch.where(is_shared, _SHARED, mine))
    change = {"add": arithmetic.add, "max": arithmetic.maximum, "min": arithmetic.minimum}[kind]

    def apply_change(old: Tensor, by: Tensor) -> Tensor:
        result: Tensor = call_narrowed(change, [old, by], {}, node.meta["type"])
        return result

    return atomics.update(target.tensor, places, targets, frame.values[value], apply_change)


def _print(frame: Frame, node: fx.Node) -> None:
    values, label = _args(node)
    rows = _each(node, values)
    texts = [v if isinstance(v, str) else _format_tile(frame, v, b, m) for v, b, m in rows]
    site = messages.Site(node.meta.get("line"), label, ())
    sys.stdout.write(messages.line(site, frame.ids, texts))


def _format_tile(frame: Frame, value: fx.Node, bounds: Any, masks: Any) -> str:
    """The numbers of a tile; a dot for those that are none."""
    lanes = frame.lanes(bounds, masks, value.meta["type"].shape)
    numbers = (
        widen(frame.values[value])
        if value.meta["type"].dtype.kind == "float"
        else frame.values[value]
    )
    held = lanes.flatten().tolist()
    return messages.format_tile(numbers.flatten().tolist(), held, tuple(lanes.shape))


def _assert(frame: Frame, node: fx.Node) -> None:
    condition, message = _args(node)
    lanes = frame.within(node, condition.meta["type"].shape)
    failing = torch.nonzero(~frame.values[condition] & lanes)
    if not len(failing):
        return
    lane = f", lane {tuple(failing[0].tolist())}" if failing.shape[1] else ""
    raise messages.assertion_error(message, frame.ids, lane, node.meta.get("line"))


def _check_index(frame: Frame, node: fx.Node) -> None:
    index, buffer, axis, shape, _ = _args(node)
    size = frame.values[buffer].tensor.shape[axis]
    lanes = frame.within(node, shape)
    values = frame.values[index].expand(lanes.shape)[lanes]
    bad = values[(values < 0) | (values >= size)]
    if len(bad):
        indexed = messages.Indexed(frame.values[buffer].name, axis, as_expr(size))
        line = node.meta.get("line")
        raise messages.bad_index(indexed, size, int(bad[0]), frame.ids, line)


def _breakpoint(frame: Frame, node: fx.Node) -> None:
    """Stop; the kernel's variables are in `values`, what was computed in `nodes`."""
    names, held = _args(node)
    plain = [frame.values[v] if isinstance(v, fx.Node) else v for v in held]
    pairs = zip(names, plain, strict=True)
    values = {name: IndexExpr(v) if _is_open(frame, v) else frame.plain(v) for name, v in pairs}
    nodes, program, line = _by_name(frame), frame.ids, node.meta.get("line")
    breakpoint()
    del values, nodes, program, line


def _is_open(frame: Frame, value: Any) -> bool:
    """Whether a size has no number in this call: the kernel computes nothing from it."""
    return isinstance(value, Expr) and not value.symbols <= frame.known.keys()


def _by_name(frame: Frame) -> dict[str, Any]:
    return {node.name: frame.plain(value) for node, value in frame.values.items()}


def _result(frame: Frame, node: fx.Node) -> Any:
    values, place = _args(node)
    return frame.values[values][place]


SPECIAL: dict[Op, Callable[[Frame, fx.Node], Any]] = {
    memory.load: _load,
    memory.gather: _gather,
    memory.store: _store,
    memory.scatter: _scatter,
    memory.to_index: _to_index,
    products.dot: _dot,
    control_flow.for_op: _for,
    control_flow.while_op: _while,
    control_flow.cond_op: _cond,
    control_flow.result: _result,
    scans.scan_op: _scan,
    scans.reduce_op: _reduce,
    atomics.atomic_block: _atomic_block,
    atomics.atomic_scatter: _atomic_scatter,
    debugging.print_op: _print,
    debugging.assert_op: _assert,
    debugging.breakpoint_op: _breakpoint,
    index_checks.check_index: _check_index,
}
