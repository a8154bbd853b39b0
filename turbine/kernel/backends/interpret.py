"""Run a kernel's graph with torch, program by program: each op by its meaning.

Slow, and meant to be looked into: what is read outside a buffer or before it was written is nan,
two programs that write one element are reported, and errors name the user's line.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from turbine import errors
from turbine.dtypes import Dtype
from turbine.kernel.algebra import Expr, Symbol
from turbine.kernel.lang import control_flow, memory, products
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.op import Op
from turbine.kernel.program import Program
from turbine.kernel.types import BufferType, TileType
from turbine.kernel.validity import Bound

# Called with each node that was computed, and its value.
Watch = Callable[[fx.Node, Any], None]


@dataclass
class Memory:
    """A buffer: its tensor, and which program wrote each element (-1: none, -2: the caller)."""

    name: str
    tensor: Tensor
    writer: Tensor

    @staticmethod
    def of(name: str, type: BufferType, given: Tensor | None, shape: Sequence[int]) -> Memory:
        """A tensor of the caller's, or one that was not written yet."""
        if given is not None:
            return Memory(name, given, torch.full(given.shape, _CALLER))
        assert isinstance(type.dtype, Dtype)
        if type.fill is not None:
            filled = torch.full(tuple(shape), type.fill, dtype=type.dtype.torch)
            return Memory(name, filled, torch.full(filled.shape, _CALLER))
        empty = poisoned(torch.empty(tuple(shape), dtype=type.dtype.torch))
        return Memory(name, empty, torch.full(empty.shape, _NOBODY))


_NOBODY, _CALLER = -1, -2


def poisoned(tensor: Tensor) -> Tensor:
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
    return {p.name: memories[p.name].tensor for p in program.of_usage("output")}


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
        given = memories.get(parameter.name, args.get(parameter.name))
        if not isinstance(given, Memory):
            dtype = parameter.type.dtype
            assert isinstance(dtype, Dtype)
            given = torch.tensor(given).to(dtype.torch)
        frame.values[node] = given
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
                self.values[node] = self._computed(node)
                if self.watch is not None:
                    self.watch(node, self.values[node])
        return tuple(self.values[node] for node in output_of(graph))

    def _computed(self, node: fx.Node) -> Any:
        made = node.target
        assert isinstance(made, Op)
        special = SPECIAL.get(made)
        try:
            return special(self, node) if special is not None else self._meant(node, made)
        except errors.TurbineError:
            raise
        except Exception as error:
            raise errors.KernelError(
                f"{made!r} failed: {error}", where=node.meta.get("line")
            ) from error

    def _meant(self, node: fx.Node, made: Op) -> Any:
        args = list(fx.node.map_arg(tuple(node.args), self.values.__getitem__))
        args = [self.plain(argument) for argument in args]
        keywords = {}
        if "within" in inspect.signature(made.meaning).parameters:
            operand = node.args[0]
            shape = operand.meta["type"].shape if isinstance(operand, fx.Node) else operand
            keywords["within"] = self.within(node, shape)
        return narrowed(made.meaning, args, keywords, node.meta.get("type"))

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

    def kept(self, body: Body, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """What a turn of a loop carries on: lanes without a value stay as they were."""
        rows = zip(body.valid, before, after, output_of(body.graph), strict=True)
        return [
            torch.where(self.lanes(v.bounds, v.masks, node.meta["type"].shape), new, old)
            for v, old, new, node in rows
        ]


def narrowed(meaning: Any, args: list[Any], keywords: dict[str, Any], type: Any) -> Any:
    """Call a meaning; where torch has no kernels for a type, in a wider one that it has."""
    widened = [_widened(argument) for argument in args]
    if all(new is old for new, old in zip(widened, args, strict=True)):
        return meaning(*args, **keywords)
    result = meaning(*widened, **keywords)
    return result.to(type.dtype.torch) if isinstance(type, TileType) else result


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        to = _WIDER.get(value.dtype)
        return value if to is None else value.to(to)
    if isinstance(value, tuple) and any(isinstance(v, Tensor) for v in value):
        return tuple(map(_widened, value))
    return value


_WIDER = {
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
}


# Ops that need more than the values of their operands


def _load(frame: Frame, node: fx.Node) -> Tensor:
    source, index, shape = frame.values[node.args[0]], node.args[1], node.args[2]
    assert isinstance(source, Memory)
    start, sizes = frame.plain(index), frame.sizes(shape)  # type: ignore[arg-type]
    lanes = frame.within(node, shape)  # type: ignore[arg-type]
    _check_written(
        frame, node, source, memory.load.meaning(source.writer, start, sizes, lanes), lanes
    )
    raw = memory.load.meaning(_readable(source.tensor), start, sizes, lanes)
    return _outside_poisoned(raw.to(source.tensor.dtype), lanes)


def _gather(frame: Frame, node: fx.Node) -> Tensor:
    source = frame.values[node.args[0]]
    index = [frame.values[i] for i in node.args[1]]  # type: ignore[union-attr]
    lanes = frame.within(node, node.meta["type"].shape)
    _check_written(frame, node, source, memory.gather.meaning(source.writer, index), lanes)
    raw = memory.gather.meaning(_readable(source.tensor), index)
    return _outside_poisoned(raw.to(source.tensor.dtype), lanes)


def _readable(tensor: Tensor) -> Tensor:
    """The tensor, of a type that torch can index."""
    return _widened(tensor)  # type: ignore[no-any-return]


def _outside_poisoned(tile: Tensor, lanes: Tensor) -> Tensor:
    if bool(lanes.all()):
        return tile
    poison = poisoned(
        torch.empty((), dtype=torch.float32 if tile.dtype.is_floating_point else tile.dtype)
    )
    wide = _widened(tile)
    return torch.where(lanes, wide, poison.to(wide.dtype)).to(tile.dtype)


def _check_written(
    frame: Frame, node: fx.Node, source: Memory, writers: Tensor, lanes: Tensor
) -> None:
    if bool(((writers == _NOBODY) & lanes).any()):
        raise errors.KernelError(
            f"program {frame.ids} reads elements of {source.name} that nothing was written to",
            where=node.meta.get("line"),
            hint="write them first, in the same program",
        )


def _store(frame: Frame, node: fx.Node) -> None:
    target, value = frame.values[node.args[0]], frame.values[node.args[2]]
    lanes = frame.within(node, node.args[2].meta["type"].shape)  # type: ignore[union-attr]
    start = frame.plain(node.args[1])
    places = torch.nonzero(lanes, as_tuple=True)
    at = tuple(place + first for place, first in zip(places, start, strict=True))
    _write(frame, node, target, at, value, places)


def _scatter(frame: Frame, node: fx.Node) -> None:
    target, value = frame.values[node.args[0]], frame.values[node.args[2]]
    lanes = frame.within(node, node.args[2].meta["type"].shape)  # type: ignore[union-attr]
    index = [frame.values[i] for i in node.args[1]]  # type: ignore[union-attr]
    at = tuple(i[lanes] for i in index)
    _write(frame, node, target, at, value, torch.nonzero(lanes, as_tuple=True))


def _write(
    frame: Frame, node: fx.Node, target: Memory, at: Any, value: Tensor, places: Any
) -> None:
    _check_alone(frame, node, target, target.writer[at])
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
    others = (writers >= 0) & (writers != frame.number)
    if bool(others.any()):
        other = int(writers[others].flatten()[0])
        raise errors.KernelError(
            f"two programs store to one element of {target.name}: number {other} and "
            f"{frame.number}, {frame.ids}",
            where=node.meta.get("line"),
            hint="let each program write a part of its own, or use tkl.atomic_add",
        )


def _dot(frame: Frame, node: fx.Node) -> Tensor:
    operands = [frame.values[operand] for operand in node.args]  # type: ignore[index]
    rows = zip(node.args[:2], node.kwargs["bounds"], node.kwargs["masks"], strict=True)  # type: ignore[arg-type]
    lanes = [frame.lanes(b, m, operand.meta["type"].shape) for operand, b, m in rows]  # type: ignore[union-attr]
    wide = [_widened(operand) for operand in operands]
    product: Tensor = products.dot.meaning(*wide, *lanes)
    return product.to(operands[2].dtype)


def _to_index(frame: Frame, node: fx.Node) -> int:
    value, symbol = node.args
    frame.known[symbol] = int(frame.values[value])  # type: ignore[index]
    return frame.known[symbol]  # type: ignore[index]


def _for(frame: Frame, node: fx.Node) -> list[Any]:
    start, stop, step, init, body, captured = node.args
    assert isinstance(body, Body) and body.counter is not None
    values = [frame.values[n] for n in init]  # type: ignore[union-attr]
    for turn in range(frame.plain(start), frame.plain(stop), step):  # type: ignore[arg-type]
        frame.known[body.counter] = turn
        after = frame.within_region(body, values, captured)  # type: ignore[arg-type]
        values = frame.kept(body, values, after)
    return values


def _while(frame: Frame, node: fx.Node) -> list[Any]:
    asked, of_asked, init, body, captured = node.args
    assert isinstance(asked, Body) and isinstance(body, Body)
    values = [frame.values[n] for n in init]  # type: ignore[union-attr]
    while bool(frame.within_region(asked, values, of_asked)[0]):  # type: ignore[arg-type]
        after = frame.within_region(body, values, captured)  # type: ignore[arg-type]
        values = frame.kept(body, values, after)
    return values


def _cond(frame: Frame, node: fx.Node) -> list[Any]:
    condition, passed, one, of_one, other, of_other = node.args
    body, captured = (one, of_one) if bool(frame.values[condition]) else (other, of_other)  # type: ignore[index]
    values = [frame.values[n] for n in passed]  # type: ignore[union-attr]
    return list(frame.within_region(body, values, captured))  # type: ignore[arg-type]


def _result(frame: Frame, node: fx.Node) -> Any:
    values, place = node.args
    return frame.values[values][place]  # type: ignore[index]


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
}
