"""Rules of reductions: loops that carry vectors of partial results, folded at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine.algebra import Expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.emitter import RULES, Emitter, Extent, lanes_for, vector_axis
from turbine.kernel.backends.iree.memory import mask_at
from turbine.kernel.backends.iree.tiles import Coord, Coords, TileValue
from turbine.kernel.backends.iree.views import count_lanes
from turbine.kernel.lang import reductions
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import I64
from turbine.kernel.trace.validity import Bound
from turbine.mlir.writer import Value, Writer


@dataclass(frozen=True)
class Kind:
    """How partial results are put together."""

    name: str
    combine: Callable[[Writer, Dtype, Sequence[Value], Sequence[Value]], list[Value]]
    # The op that folds a vector, by kind of element; None: lane by lane.
    fold: Callable[[Dtype], str] | None
    has_place: bool = False


def _by_op(of_floats: str, signed: str, unsigned: str) -> Any:
    names = {"float": of_floats, "int": signed, "uint": unsigned, "bool": unsigned}

    def combine(w: Writer, dtype: Dtype, old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        return [w.binary(f"arith.{names[dtype.kind]}", old[0], new[0])]

    return combine


def _folds(of_floats: str, signed: str, unsigned: str) -> Callable[[Dtype], str]:
    names = {"float": of_floats, "int": signed, "uint": unsigned, "bool": unsigned}
    return lambda dtype: names[dtype.kind]


def _further(is_max: bool) -> Any:
    """Keep the extreme and its place: nan before everything, the first of equals."""

    def combine(w: Writer, dtype: Dtype, old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        x, x_place = old
        y, y_place = new
        better, same = _better(w, dtype, y, x, is_max)
        earlier = w.compare("arith.cmpi", "slt", y_place, x_place)
        take = w.binary("arith.ori", better, w.binary("arith.andi", same, earlier))
        return [w.select(take, y, x), w.select(take, y_place, x_place)]

    return combine


def _better(w: Writer, dtype: Dtype, y: Value, x: Value, is_max: bool) -> tuple[Value, Value]:
    if dtype.kind != "float":
        sign = "s" if dtype.kind == "int" else "u"
        better = w.compare("arith.cmpi", f"{sign}{'gt' if is_max else 'lt'}", y, x)
        return better, w.compare("arith.cmpi", "eq", y, x)
    y_nan, x_nan = w.compare("arith.cmpf", "uno", y, y), w.compare("arith.cmpf", "uno", x, x)
    beyond = w.compare("arith.cmpf", "ogt" if is_max else "olt", y, x)
    one = w.constant(True, "i1", x.lanes)
    only_new = w.binary("arith.andi", y_nan, w.binary("arith.xori", x_nan, one))
    equal = w.compare("arith.cmpf", "oeq", y, x)
    both = w.binary("arith.andi", y_nan, x_nan)
    return w.binary("arith.ori", beyond, only_new), w.binary("arith.ori", equal, both)


KINDS = {
    reductions.sum: Kind("sum", _by_op("addf", "addi", "addi"), _folds("add", "add", "add")),
    reductions.prod: Kind("prod", _by_op("mulf", "muli", "muli"), _folds("mul", "mul", "mul")),
    reductions.max: Kind(
        "max", _by_op("maximumf", "maxsi", "maxui"), _folds("maximumf", "maxsi", "maxui")
    ),
    reductions.min: Kind(
        "min", _by_op("minimumf", "minsi", "minui"), _folds("minimumf", "minsi", "minui")
    ),
    reductions.any: Kind("any", _by_op("", "ori", "ori"), _folds("", "or", "or")),
    reductions.all: Kind("all", _by_op("", "andi", "andi"), _folds("", "and", "and")),
    reductions.argmax: Kind("argmax", _further(True), None, has_place=True),
    reductions.argmin: Kind("argmin", _further(False), None, has_place=True),
}


@dataclass
class Reduction:
    """One reduction that is being written."""

    emitter: Emitter
    kind: Kind
    tile: TileValue
    axes: tuple[int, ...]
    masks: list[TileValue]
    lanes: int

    def start(self, lanes: int) -> list[Value]:
        """Partial results before anything was seen."""
        w, dtype = self.emitter.w, self.tile.dtype
        neutral = reductions.neutral(self.kind.name, dtype.torch)
        held = [elements.number(w, neutral, dtype, lanes)]
        if self.kind.has_place:
            held.append(w.constant(2**62, "i64", lanes))
        return held

    def accumulate(self, coords: Coords, held: Sequence[Value]) -> list[Value]:
        """Partial results after some more lanes."""
        emitter, w = self.emitter, self.emitter.w
        value = emitter.spread(emitter.at(self.tile, coords), coords)
        taking = mask_at(emitter, self.masks, coords)
        if taking is not None:
            value = w.select(taking, value, self.start(value.lanes)[0])
        new = [value]
        if self.kind.has_place:
            place = count_lanes(emitter, coords[self.axes[0]], 0, I64)
            place = w.splat(place, value.lanes) if value.lanes else place
            if taking is not None:
                place = w.select(taking, place, w.constant(2**62, "i64", value.lanes))
            new.append(place)
        return self.kind.combine(w, self.tile.dtype, held, new)

    def fold(self, held: Sequence[Value]) -> list[Value]:
        """Vectors of partial results as single ones."""
        emitter, w = self.emitter, self.emitter.w
        if not held[0].lanes:
            return list(held)
        if self.kind.fold is not None:
            (vector,) = held
            name = self.kind.fold(self.tile.dtype)
            text = f"vector.reduction <{name}>, {vector} : {vector.type} into {vector.element}"
            return [w.emit(text, vector.element)]
        parts = [[emitter.lane(v, step) for v in held] for step in range(held[0].lanes)]
        total = parts[0]
        for part in parts[1:]:
            total = self.kind.combine(w, self.tile.dtype, total, part)
        return total

    def over(self, extents: Sequence[Extent], kept: Coords, axis: int | None) -> list[Value]:
        """Write the loops over the axes that are reduced, for lanes of those that are kept."""
        lanes = max((coord.lanes for coord in kept), default=0)
        return self._over(extents, kept, (), axis, self.start(lanes))

    def _over(
        self,
        extents: Sequence[Extent],
        kept: Coords,
        done: Coords,
        axis: int | None,
        held: list[Value],
    ) -> list[Value]:
        if len(done) == len(extents):
            return self.accumulate(done, held)
        place = len(done)
        if place not in self.axes:
            own = kept[sum(one not in self.axes for one in range(place))]
            return self._over(extents, kept, (*done, own), axis, held)
        first, end = extents[place]

        def inner(coord: Coord, carried: list[Value]) -> list[Value]:
            return self._over(extents, kept, (*done, coord), axis, carried)

        if place == axis and self.lanes:
            return self._by_vectors(first, end, inner, held)
        return self._loop(first, end, 1, 0, inner, held)

    def _by_vectors(self, first: Any, end: Any, inner: Any, held: list[Value]) -> list[Value]:
        emitter, w = self.emitter, self.emitter.w
        middle = emitter.middle(first, end, self.lanes)
        vectors = self._loop(first, middle, self.lanes, self.lanes, inner, self.start(self.lanes))
        total = self.kind.combine(w, self.tile.dtype, held, self.fold(vectors))
        return self._loop(middle, end, 1, 0, inner, total)

    def _loop(
        self, first: Any, end: Any, step: int, lanes: int, inner: Any, held: list[Value]
    ) -> list[Value]:
        if isinstance(first, int) and isinstance(end, int) and end - first <= step:
            return inner(Coord(first, lanes), held) if end > first else held
        w = self.emitter.w
        with w.loop(first, end, step, held) as loop, self.emitter.scope():
            loop.yielded = inner(Coord(loop.counter, lanes), loop.carried)
        return loop.results


def _rule(kind: Kind) -> Callable[[Emitter, fx.Node], TileValue]:
    def rule(emitter: Emitter, node: fx.Node) -> TileValue:
        return emit_reduction(emitter, node, kind)

    return rule


def emit_reduction(emitter: Emitter, node: fx.Node, kind: Kind) -> TileValue:
    """Reduce an operand along axes."""
    operand: Any = arguments(node)[0]
    axes: tuple[int, ...] = arguments(node)[1]
    type = node.meta["type"]
    tile = emitter.tile(operand)
    masks = [emitter.tile(mask) for mask in options(node)["masks"]]
    bounds = dict.fromkeys((*operand.meta["valid"].bounds, *options(node)["bounds"]))
    extents = emitter.extents(operand.meta["type"].shape, list(bounds))
    axis = vector_axis(extents)
    inner = axis in axes
    reduction = Reduction(
        emitter, kind, tile, axes, masks, lanes_for(tile.dtype, extents) if inner else 0
    )
    kept = [extent for place, extent in enumerate(extents) if place not in axes]
    if all(extent == (0, 1) for extent in kept):
        zeros = tuple(Coord(0) for _ in kept)
        value = _result(emitter, reduction.fold(reduction.over(extents, zeros, axis)), type.dtype)
        return TileValue(emitter.sizes(type.shape), type.dtype, lambda coords: value)
    buffer = emitter.allocate(type.shape, type.dtype)

    def body(coords: Coords) -> None:
        held = reduction.over(extents, coords, axis)
        emitter.put(buffer, coords, _result(emitter, held, type.dtype))

    emitter.sweep(kept, 0 if inner else lanes_for(tile.dtype, kept), body)
    return emitter.tile_in(buffer, emitter.sizes(type.shape))


def join_bits(
    emitter: Emitter,
    tile: TileValue,
    shape: Sequence[Expr],
    bounds: Sequence[Bound],
    masks: list[TileValue],
) -> Value:
    """The bits that integers of a tile have, among the lanes that fulfil bounds and masks."""
    extents = emitter.extents(shape, bounds)
    axes, lanes = tuple(range(len(shape))), lanes_for(tile.dtype, extents)
    reduction = Reduction(emitter, KINDS[reductions.any], tile, axes, masks, lanes)
    (found,) = reduction.fold(reduction.over(extents, (), vector_axis(extents)))
    return found


def _result(emitter: Emitter, held: Sequence[Value], dtype: Dtype) -> Value:
    """The value, or the place if that was asked for; the place of nothing is 0."""
    if len(held) == 1:
        return elements.round_to(emitter.w, held[0], dtype)
    w, place = emitter.w, held[1]
    nowhere = w.compare("arith.cmpi", "eq", place, w.constant(2**62, "i64", place.lanes))
    return w.select(nowhere, w.constant(0, "i64", place.lanes), place)


RULES.update({made: _rule(kind) for made, kind in KINDS.items()})
