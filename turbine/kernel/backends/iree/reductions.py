"""Rules of reductions: loops that carry vectors of partial results, reduced at the end."""

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
    """How partial results are combined."""

    name: str
    combine: Callable[[Writer, Dtype, Sequence[Value], Sequence[Value]], list[Value]]
    # The `vector.reduction` for a dtype; None: lane by lane.
    fold: Callable[[Dtype], str] | None
    has_index: bool = False


def _by_op(of_floats: str, signed: str, unsigned: str) -> Any:
    names = {"float": of_floats, "int": signed, "uint": unsigned, "bool": unsigned}

    def combine(w: Writer, dtype: Dtype, old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        return [w.binary(f"arith.{names[dtype.kind]}", old[0], new[0])]

    return combine


def _fold_by_kind(of_floats: str, signed: str, unsigned: str) -> Callable[[Dtype], str]:
    names = {"float": of_floats, "int": signed, "uint": unsigned, "bool": unsigned}
    return lambda dtype: names[dtype.kind]


def _extreme(is_max: bool) -> Any:
    """Keep the extreme and its index; nan wins, and the first of equal lanes."""

    def combine(w: Writer, dtype: Dtype, old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        x, x_index = old
        y, y_index = new
        better, same = _better(w, dtype, y, x, is_max)
        earlier = w.compare("arith.cmpi", "slt", y_index, x_index)
        take = w.binary("arith.ori", better, w.binary("arith.andi", same, earlier))
        return [w.select(take, y, x), w.select(take, y_index, x_index)]

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
    reductions.sum: Kind("sum", _by_op("addf", "addi", "addi"), _fold_by_kind("add", "add", "add")),
    reductions.prod: Kind(
        "prod", _by_op("mulf", "muli", "muli"), _fold_by_kind("mul", "mul", "mul")
    ),
    reductions.max: Kind(
        "max", _by_op("maximumf", "maxsi", "maxui"), _fold_by_kind("maximumf", "maxsi", "maxui")
    ),
    reductions.min: Kind(
        "min", _by_op("minimumf", "minsi", "minui"), _fold_by_kind("minimumf", "minsi", "minui")
    ),
    reductions.any: Kind("any", _by_op("", "ori", "ori"), _fold_by_kind("", "or", "or")),
    reductions.all: Kind("all", _by_op("", "andi", "andi"), _fold_by_kind("", "and", "and")),
    reductions.argmax: Kind("argmax", _extreme(True), None, has_index=True),
    reductions.argmin: Kind("argmin", _extreme(False), None, has_index=True),
}


@dataclass
class Reduction:
    """Writes one reduction."""

    emitter: Emitter
    kind: Kind
    tile: TileValue
    axes: tuple[int, ...]
    masks: list[TileValue]
    lanes: int

    def start(self, lanes: int) -> list[Value]:
        """The initial partial results."""
        w, dtype = self.emitter.w, self.tile.dtype
        neutral = reductions.neutral(self.kind.name, dtype.torch)
        partial = [elements.number(w, neutral, dtype, lanes)]
        if self.kind.has_index:
            partial.append(w.constant(2**62, "i64", lanes))
        return partial

    def accumulate(self, coords: Coords, partial: Sequence[Value]) -> list[Value]:
        """Combine partial results with more lanes."""
        emitter, w = self.emitter, self.emitter.w
        value = emitter.spread(emitter.at(self.tile, coords), coords)
        mask = mask_at(emitter, self.masks, coords)
        if mask is not None:
            value = w.select(mask, value, self.start(value.lanes)[0])
        new = [value]
        if self.kind.has_index:
            place = count_lanes(emitter, coords[self.axes[0]], 0, I64)
            place = w.splat(place, value.lanes) if value.lanes else place
            if mask is not None:
                place = w.select(mask, place, w.constant(2**62, "i64", value.lanes))
            new.append(place)
        return self.kind.combine(w, self.tile.dtype, partial, new)

    def fold(self, partial: Sequence[Value]) -> list[Value]:
        """Reduce vectors of partial results to scalars."""
        emitter, w = self.emitter, self.emitter.w
        if not partial[0].lanes:
            return list(partial)
        if self.kind.fold is not None:
            (vector,) = partial
            name = self.kind.fold(self.tile.dtype)
            text = f"vector.reduction <{name}>, {vector} : {vector.type} into {vector.element}"
            return [w.emit(text, vector.element)]
        parts = [[emitter.lane(v, step) for v in partial] for step in range(partial[0].lanes)]
        total = parts[0]
        for part in parts[1:]:
            total = self.kind.combine(w, self.tile.dtype, total, part)
        return total

    def reduce(self, extents: Sequence[Extent], kept: Coords, axis: int | None) -> list[Value]:
        """Write loops over the reduced axes, for lanes of the others."""
        lanes = max((coord.lanes for coord in kept), default=0)
        return self._reduce(extents, kept, (), axis, self.start(lanes))

    def _reduce(
        self,
        extents: Sequence[Extent],
        kept: Coords,
        done: Coords,
        axis: int | None,
        partial: list[Value],
    ) -> list[Value]:
        if len(done) == len(extents):
            return self.accumulate(done, partial)
        place = len(done)
        if place not in self.axes:
            own = kept[sum(one not in self.axes for one in range(place))]
            return self._reduce(extents, kept, (*done, own), axis, partial)
        first, end = extents[place]

        def inner(coord: Coord, carried: list[Value]) -> list[Value]:
            return self._reduce(extents, kept, (*done, coord), axis, carried)

        if place == axis and self.lanes:
            return self._by_vectors(first, end, inner, partial)
        return self._loop(first, end, 1, 0, inner, partial)

    def _by_vectors(self, first: Any, end: Any, inner: Any, partial: list[Value]) -> list[Value]:
        emitter, w = self.emitter, self.emitter.w
        middle = emitter.middle(first, end, self.lanes)
        vectors = self._loop(first, middle, self.lanes, self.lanes, inner, self.start(self.lanes))
        total = self.kind.combine(w, self.tile.dtype, partial, self.fold(vectors))
        return self._loop(middle, end, 1, 0, inner, total)

    def _loop(
        self, first: Any, end: Any, step: int, lanes: int, inner: Any, partial: list[Value]
    ) -> list[Value]:
        if isinstance(first, int) and isinstance(end, int) and end - first <= step:
            return inner(Coord(first, lanes), partial) if end > first else partial
        w = self.emitter.w
        with w.loop(first, end, step, partial) as loop, self.emitter.scope():
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
        value = _result(emitter, reduction.fold(reduction.reduce(extents, zeros, axis)), type.dtype)
        return TileValue(emitter.sizes(type.shape), type.dtype, lambda coords: value)
    buffer = emitter.allocate(type.shape, type.dtype)

    def body(coords: Coords) -> None:
        partial = reduction.reduce(extents, coords, axis)
        emitter.put(buffer, coords, _result(emitter, partial, type.dtype))

    emitter.sweep(kept, 0 if inner else lanes_for(tile.dtype, kept), body)
    return emitter.tile_in(buffer, emitter.sizes(type.shape))


def join_bits(
    emitter: Emitter,
    tile: TileValue,
    shape: Sequence[Expr],
    bounds: Sequence[Bound],
    masks: list[TileValue],
) -> Value:
    """The bitwise or of a tile, over the lanes that satisfy bounds and masks."""
    extents = emitter.extents(shape, bounds)
    axes, lanes = tuple(range(len(shape))), lanes_for(tile.dtype, extents)
    reduction = Reduction(emitter, KINDS[reductions.any], tile, axes, masks, lanes)
    (found,) = reduction.fold(reduction.reduce(extents, (), vector_axis(extents)))
    return found


def _result(emitter: Emitter, partial: Sequence[Value], dtype: Dtype) -> Value:
    """The value, or the index for argmax and argmin; the index of no lanes is 0."""
    if len(partial) == 1:
        return elements.round_to(emitter.w, partial[0], dtype)
    w, place = emitter.w, partial[1]
    is_empty = w.compare("arith.cmpi", "eq", place, w.constant(2**62, "i64", place.lanes))
    return w.select(is_empty, w.constant(0, "i64", place.lanes), place)


RULES.update({op: _rule(kind) for op, kind in KINDS.items()})
