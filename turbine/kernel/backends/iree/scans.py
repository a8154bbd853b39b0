"""Rules of scans and of reductions with a user function: a loop along the axis.

Scans of sums, products and extremes along the last axis take vectors of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.emitter import RULES, Emitter, Extent, lanes_for, vector_axis
from turbine.kernel.backends.iree.memory import mask_at
from turbine.kernel.backends.iree.reductions import KINDS
from turbine.kernel.backends.iree.tiles import Coord, Coords, TileValue
from turbine.kernel.lang import reductions, scans
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.trace.op import Op, arguments, options
from turbine.mlir.writer import Index, Value

# Running and new values in, running values out.
Combine = Callable[[Sequence[Value], Sequence[Value]], list[Value]]
# Called with the running values at each lane.
Visit = Callable[[Coords, Sequence[Value]], None]


@dataclass
class Walk:
    """A loop along an axis that carries values from lane to lane."""

    emitter: Emitter
    tiles: list[TileValue]
    masks: list[TileValue]
    axis: int
    combine: Combine
    # The initial values for a vector length; None: the values of the first valid lane.
    starts: Callable[[int], list[Value]] | None
    reverse: bool = False

    def along(self, extent: Extent, others: Coords, visit: Visit, lanes: int = 0) -> list[Value]:
        """Write the loop for lanes of the other axes; return the final values.

        With `lanes`, the loop takes vectors of lanes, whose initial value is neutral, and then the
        remaining lanes.
        """
        first, end = extent
        carried = self._start(max((coord.lanes for coord in others), default=0))
        if lanes:
            middle = self.emitter.middle(first, end, lanes)
            carried = self._loop(extent, (first, middle), lanes, carried, others, visit)
            first = middle
        carried = self._loop(extent, (first, end), 0, carried, others, visit)
        return carried[: len(self.tiles)]

    def _loop(
        self,
        extent: Extent,
        part: Extent,
        lanes: int,
        carried: list[Value],
        others: Coords,
        visit: Visit,
    ) -> list[Value]:
        """Write the loop over a part of the axis, counted in the direction of the scan."""
        emitter, w = self.emitter, self.emitter.w
        with w.loop(*part, lanes or 1, carried) as loop, emitter.scope():
            place: Index = loop.counter
            if self.reverse:
                place = w.sub(w.sub(w.add(*extent), lanes or 1), place)
            coords = (*others[: self.axis], Coord(place, lanes), *others[self.axis :])
            if lanes:
                values = self._scan_vector(coords, loop.carried[0], lanes)
                loop.yielded = [emitter.lane(values, 0 if self.reverse else lanes - 1)]
                visit(coords, [values])
            else:
                loop.yielded = self._step(coords, loop.carried)
                visit(coords, loop.yielded)
        return loop.results

    def _scan_vector(self, coords: Coords, before: Value, lanes: int) -> Value:
        """Scan a vector of lanes: by steps of doubling width, then with the value before it."""
        assert self.starts is not None
        emitter, w = self.emitter, self.emitter.w
        (neutral,) = self.starts(lanes)
        values = emitter.spread(emitter.at(self.tiles[0], coords), coords)
        mask = mask_at(emitter, self.masks, coords)
        if mask is not None:
            values = w.select(mask, values, neutral)
        width = 1
        while width < lanes:
            (values,) = self.combine([self._shift(values, neutral, width)], [values])
            width *= 2
        return self.combine([w.splat(before, lanes)], [values])[0]

    def _shift(self, values: Value, neutral: Value, width: int) -> Value:
        """Move lanes in the direction of the scan; neutral values come in."""
        lanes, by = values.lanes, -width if self.reverse else width
        sources = [lane - by for lane in range(lanes)]
        # In a shuffle of two vectors, lanes of the second are counted on.
        picked = ", ".join(str(s if 0 <= s < lanes else lanes) for s in sources)
        text = f"vector.shuffle {values}, {neutral} [{picked}] : {values.type}, {values.type}"
        return self.emitter.w.emit(text, values.element, lanes)

    def _start(self, lanes: int) -> list[Value]:
        w = self.emitter.w
        if self.starts is not None:
            return self.starts(lanes)
        zeros = [w.constant(0, elements.carrier(tile.dtype), lanes) for tile in self.tiles]
        return [*zeros, w.constant(False, "i1", lanes)]

    def _step(self, coords: Coords, carried: Sequence[Value]) -> list[Value]:
        emitter, w = self.emitter, self.emitter.w
        count = len(self.tiles)
        new = [emitter.spread(emitter.at(tile, coords), coords) for tile in self.tiles]
        both = self.combine(carried[:count], new)
        both = [emitter.spread(value, coords) for value in both]
        mask = mask_at(emitter, self.masks, coords)
        if self.starts is None:
            has_value = carried[count]
            both = [w.select(has_value, value, own) for value, own in zip(both, new, strict=True)]
            true = w.constant(True, "i1", has_value.lanes)
            both.append(true if mask is None else w.binary("arith.ori", has_value, mask))
        if mask is None:
            return both
        old = carried[: len(both)]
        kept = [w.select(mask, v, o) for v, o in zip(both[:count], old, strict=False)]
        return [*kept, *both[count:]]


def _user_function(
    emitter: Emitter, body: Body, captured: Sequence[Any], dtypes: Sequence[Dtype]
) -> Combine:
    """A user function as a Combine."""
    places = [node for node in body.graph.nodes if node.op == "placeholder"]
    for place, node in zip(places[body.carried :], captured, strict=True):
        emitter.values[place] = emitter.values[node]

    def combine(old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        for place, value, dtype in zip(places, [*old, *new], [*dtypes, *dtypes], strict=False):
            emitter.values[place] = _scalar(value, dtype)
        emitter.region(body.graph)
        return [emitter.at(emitter.tile(out), ()) for out in output_of(body.graph)]

    return combine


def _scalar(value: Value, dtype: Dtype) -> TileValue:
    return TileValue((), dtype, lambda coords: value)


def _scan(emitter: Emitter, node: fx.Node, operands: Sequence[Any], walk: Walk) -> list[TileValue]:
    """Write a scan; the results are in scratch buffers."""
    shape = operands[0].meta["type"].shape
    extents = _extents(emitter, node, operands)
    buffers = [emitter.allocate(shape, tile.dtype) for tile in walk.tiles]

    def visit(coords: Coords, values: Sequence[Value]) -> None:
        for buffer, value in zip(buffers, values, strict=False):
            emitter.put(buffer, coords, value)

    _sweep_others(emitter, extents, walk, visit)
    return [emitter.tile_in(buffer, emitter.sizes(shape)) for buffer in buffers]


def _sweep_others(emitter: Emitter, extents: Sequence[Extent], walk: Walk, visit: Visit) -> None:
    others = [extent for place, extent in enumerate(extents) if place != walk.axis]
    extent, dtype = extents[walk.axis], walk.tiles[0].dtype
    across = along = 0
    if vector_axis(extents) != walk.axis:
        across = lanes_for(dtype, others)
    elif walk.starts is not None:
        along = lanes_for(dtype, [extent])
    emitter.sweep(others, across, lambda coords: _none(walk.along(extent, coords, visit, along)))


def _none(_: object) -> None:
    return None


def _extents(emitter: Emitter, node: fx.Node, operands: Sequence[Any]) -> list[Extent]:
    bounds = dict.fromkeys(b for o in operands for b in o.meta["valid"].bounds)
    bounds |= dict.fromkeys(options(node)["bounds"])
    return emitter.extents(operands[0].meta["type"].shape, list(bounds))


def _masks(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    return [emitter.tile(mask) for mask in options(node)["masks"]]


_BUILT_IN = {
    scans.cumsum: KINDS[reductions.sum],
    scans.cumprod: KINDS[reductions.prod],
    scans.cummax: KINDS[reductions.max],
    scans.cummin: KINDS[reductions.min],
}


def _op_of(node: fx.Node) -> Op:
    assert isinstance(node.target, Op)
    return node.target


def _emit_builtin(emitter: Emitter, node: fx.Node) -> TileValue:
    operand, axis, reverse = arguments(node)
    assert isinstance(axis, int)
    kind = _BUILT_IN[_op_of(node)]
    tile = emitter.tile(operand)
    w = emitter.w

    def starts(lanes: int) -> list[Value]:
        neutral = reductions.neutral(kind.name, tile.dtype.torch)
        return [elements.number(w, neutral, tile.dtype, lanes)]

    def combine(old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        return kind.combine(w, tile.dtype, old, new)

    walk = Walk(emitter, [tile], _masks(emitter, node), axis, combine, starts, bool(reverse))
    return _scan(emitter, node, [operand], walk)[0]


def _emit_scan(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    operands, axis, reverse, body, captured = arguments(node)
    assert isinstance(axis, int)
    assert isinstance(body, Body)
    tiles = [emitter.tile(operand) for operand in operands]
    combine = _user_function(emitter, body, captured, [tile.dtype for tile in tiles])
    walk = Walk(emitter, tiles, _masks(emitter, node), axis, combine, None, bool(reverse))
    return _scan(emitter, node, operands, walk)


def _emit_reduce(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    operands, axis, init, body, captured = arguments(node)
    assert isinstance(axis, int)
    assert isinstance(body, Body)
    w = emitter.w
    tiles = [emitter.tile(operand) for operand in operands]
    first = [emitter.at(emitter.tile(start), ()) for start in init]

    def starts(lanes: int) -> list[Value]:
        return [w.splat(value, lanes) if lanes else value for value in first]

    combine = _user_function(emitter, body, captured, [tile.dtype for tile in tiles])
    walk = Walk(emitter, tiles, _masks(emitter, node), axis, combine, starts)
    extents = _extents(emitter, node, operands)
    types = node.meta["types"]
    buffers = [emitter.allocate(type.shape, type.dtype) for type in types]
    others = [extent for place, extent in enumerate(extents) if place != axis]
    lanes = lanes_for(tiles[0].dtype, others) if vector_axis(extents) != axis else 0

    def write(coords: Coords) -> None:
        totals = walk.along(extents[axis], coords, lambda *_: None)
        for buffer, total in zip(buffers, totals, strict=True):
            emitter.put(buffer, coords, total)

    emitter.sweep(others, lanes, write)
    return [emitter.tile_in(r, emitter.sizes(t.shape)) for r, t in zip(buffers, types, strict=True)]


RULES.update(dict.fromkeys(_BUILT_IN, _emit_builtin))
RULES[scans.scan_op] = _emit_scan
RULES[scans.reduce_op] = _emit_reduce
