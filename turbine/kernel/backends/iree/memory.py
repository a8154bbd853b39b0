"""Rules of loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from torch import fx

from turbine.algebra import ONE
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.emitter import RULES, Emitter, Source
from turbine.kernel.backends.iree.pointwise import broadcast_coords
from turbine.kernel.backends.iree.tiles import (
    Coord,
    Coords,
    Rows,
    TileValue,
    lanes_of,
    merge_reads,
)
from turbine.kernel.lang import memory, shapes
from turbine.kernel.lang.affine import affine_of
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import BOOL
from turbine.kernel.trace.validity import Bound
from turbine.mlir.writer import Index, Value


def source(emitter: Emitter, node: Any) -> Source:
    """The buffer of a node."""
    found = emitter.values[node]
    assert isinstance(found, Source)
    return found


def _load(emitter: Emitter, node: fx.Node) -> TileValue:
    buffer = source(emitter, arguments(node)[0])
    offsets = [emitter.index(offset) for offset in arguments(node)[1]]

    def compute(coords: Coords) -> Value:
        places = offset_coords(emitter, coords, offsets)
        raw = emitter.read(buffer.name, buffer.type, buffer.dtype, places)
        return elements.from_storage(emitter.w, raw, buffer.dtype)

    def prefetch(coords: Coords) -> None:
        at = ", ".join(
            str(emitter.w.index(p.base)) for p in offset_coords(emitter, coords, offsets)
        )
        emitter.w.line(
            f"memref.prefetch {buffer.name}[{at}], read, locality<3>, data : {buffer.type}"
        )

    def address(coords: Coords) -> Index:
        places = tuple(offset_coords(emitter, coords, offsets))
        return emitter.address(buffer.name, buffer.type, buffer.dtype, buffer.shape, places)

    shape = emitter.sizes(node.meta["type"].shape)
    rows = Rows(buffer.shape[-1], address) if shape else None
    tile = TileValue(shape, buffer.dtype, compute, 1, prefetch=prefetch, rows=rows)
    return snapshot(emitter, node, tile) if buffer.is_written else tile


def offset_coords(emitter: Emitter, coords: Coords, offsets: Sequence[Index]) -> list[Coord]:
    """The coordinates in a buffer of lanes of a block that starts at offsets."""
    pairs = zip(coords, offsets, strict=True)
    return [Coord(emitter.w.add(coord.base, offset), coord.lanes) for coord, offset in pairs]


def snapshot(emitter: Emitter, node: fx.Node, tile: TileValue) -> TileValue:
    """Read a tile at this point of the program, before its buffer is written again."""
    if tile.is_single:
        return emitter.evaluate(node, tile)
    return emitter.materialize(node, tile, "read before its buffer is written")


def _gather(emitter: Emitter, node: fx.Node) -> TileValue:
    buffer = source(emitter, arguments(node)[0])
    index = [emitter.tile(i) for i in arguments(node)[1]]
    shape = emitter.sizes(node.meta["type"].shape)

    def one_by_one(coords: Coords) -> Value:
        return by_lane(emitter, coords, lambda one: _gather_element(emitter, buffer, index, one))

    in_rows = _is_row_gather(arguments(node)[1])

    def compute(coords: Coords) -> Value:
        if not in_rows or not coords[-1].lanes:
            return one_by_one(coords)
        return _gather_row(emitter, buffer, index, coords, one_by_one)

    weight = 4 + sum(i.weight for i in index)
    reads = merge_reads(index, in_place=True)
    tile = TileValue(shape, buffer.dtype, compute, weight, reads)
    return snapshot(emitter, node, tile) if buffer.is_written else tile


def _is_row_gather(index: Sequence[fx.Node]) -> bool:
    """Whether lanes along the last axis are contiguous in the buffer."""
    last = affine_of(index[-1])
    if last is None or last.steps[-1:] != (1,):
        return False
    return all(_is_constant_along_last(one) for one in index[:-1])


def _is_constant_along_last(node: fx.Node) -> bool:
    """Whether a tile of integers is constant along its last axis."""
    if node.target is shapes.broadcast_to:
        return bool(arguments(node)[0].meta["type"].shape[-1:] == (ONE,))
    affine = affine_of(node)
    return affine is not None and affine.steps[-1:] == (0,)


def _gather_row(
    emitter: Emitter,
    buffer: Source,
    index: Sequence[TileValue],
    coords: Coords,
    otherwise: Callable[[Coords], Value],
) -> Value:
    """Load a vector of a row if all of it is in bounds, else lane by lane."""
    w, lanes = emitter.w, coords[-1].lanes
    *rows, start = indices(emitter, index, (*coords[:-1], Coord(coords[-1].base)))
    last = w.index(w.sub(buffer.shape[-1], lanes))
    checks = [
        w.compare("arith.cmpi", "ult", row, w.index(size))
        for row, size in zip(rows, buffer.shape[:-1], strict=True)
    ]
    checks += [
        w.compare("arith.cmpi", "sge", start, w.index(0)),
        w.compare("arith.cmpi", "sle", start, last),
    ]
    inside = reduce(lambda one, other: w.binary("arith.andi", one, other), checks)
    result = w.fresh(elements.carrier(buffer.dtype), lanes)
    w.line(f"{result} = scf.if {inside} -> ({result.type}) {{")
    with emitter.scope():
        at = [*map(Coord, rows), Coord(start, lanes)]
        raw = emitter.read(buffer.name, buffer.type, buffer.dtype, at)
        w.line(f"scf.yield {elements.from_storage(w, raw, buffer.dtype)} : {result.type}")
    w.line("} else {")
    with emitter.scope():
        w.line(f"scf.yield {otherwise(coords)} : {result.type}")
    w.line("}")
    return result


def by_lane(emitter: Emitter, coords: Coords, compute: Callable[[Coords], Value]) -> Value:
    """Compute lanes one by one and join them to a vector."""
    lanes = lanes_of(coords)
    if not lanes:
        return compute(coords)
    return emitter.join_lanes([compute(_single(emitter, coords, step)) for step in range(lanes)])


def _single(emitter: Emitter, coords: Coords, step: int) -> Coords:
    """The coordinates of one lane of a vector."""
    return tuple(Coord(emitter.w.add(c.base, step)) if c.lanes else c for c in coords)


def _gather_element(
    emitter: Emitter, buffer: Source, index: Sequence[TileValue], coords: Coords
) -> Value:
    """Load an element, or zero if the index is out of bounds."""
    w = emitter.w
    places = indices(emitter, index, coords)
    inside = is_inside(emitter, buffer, places)
    element = elements.carrier(buffer.dtype)
    result = w.fresh(element)
    w.line(f"{result} = scf.if {inside} -> ({element}) {{")
    at = [Coord(place) for place in places]
    raw = emitter.read(buffer.name, buffer.type, buffer.dtype, at)
    value = elements.from_storage(w, raw, buffer.dtype)
    w.line(f"scf.yield {value} : {element}")
    w.line("} else {")
    w.line(f"  scf.yield {w.constant(0, element)} : {element}")
    w.line("}")
    return result


def indices(emitter: Emitter, index: Sequence[TileValue], coords: Coords) -> list[Value]:
    """The values of index tiles at a lane, as `index`."""
    values = [emitter.at(i, broadcast_coords(i, coords)) for i in index]
    return [emitter.w.convert("arith.index_cast", value, "index") for value in values]


def is_inside(emitter: Emitter, buffer: Source, places: Sequence[Value]) -> Value:
    """Whether indices are in bounds."""
    w = emitter.w
    holds: Value | None = None
    for place, size in zip(places, buffer.shape, strict=True):
        # A negative index is large as an unsigned one.
        check = w.compare("arith.cmpi", "ult", place, w.index(size))
        holds = check if holds is None else w.binary("arith.andi", holds, check)
    return w.constant(True, "i1") if holds is None else holds


def _in_bounds(emitter: Emitter, node: fx.Node) -> TileValue:
    buffer = source(emitter, arguments(node)[0])
    index = [emitter.tile(i) for i in arguments(node)[1]]

    def compute(coords: Coords) -> Value:
        w, holds = emitter.w, None
        for one, size in zip(index, buffer.shape, strict=True):
            value = emitter.at(one, broadcast_coords(one, coords))
            limit = w.convert("arith.index_cast", w.index(size), "i64")
            spread = w.splat(limit, value.lanes) if value.lanes else limit
            check = emitter.spread(w.compare("arith.cmpi", "ult", value, spread), coords)
            holds = check if holds is None else w.binary("arith.andi", holds, check)
        return w.constant(True, "i1") if holds is None else holds

    weight = 2 + sum(i.weight for i in index)
    reads = merge_reads(index, in_place=True)
    return TileValue(emitter.sizes(node.meta["type"].shape), BOOL, compute, weight, reads)


def _store(emitter: Emitter, node: fx.Node) -> None:
    buffer, value = source(emitter, arguments(node)[0]), emitter.tile(arguments(node)[2])
    offsets = [emitter.index(offset) for offset in arguments(node)[1]]

    def body(coords: Coords) -> None:
        places = offset_coords(emitter, coords, offsets)
        raw = emitter.spread(emitter.at(value, coords), coords)
        emitter.write(
            elements.to_store(emitter.w, raw, buffer.dtype), buffer.name, buffer.type, places
        )

    if node in emitter.deferred:
        emitter.deferred[node](body)
    else:
        each_lane(emitter, node, arguments(node)[2], body)


def _scatter(emitter: Emitter, node: fx.Node) -> None:
    buffer, value = source(emitter, arguments(node)[0]), emitter.tile(arguments(node)[2])
    index = [emitter.tile(i) for i in arguments(node)[1]]

    def body(coords: Coords) -> None:
        places = [Coord(place) for place in indices(emitter, index, coords)]
        raw = elements.to_store(emitter.w, emitter.at(value, coords), buffer.dtype)
        emitter.write(raw, buffer.name, buffer.type, places)

    each_lane(emitter, node, arguments(node)[2], body, by_vectors=False)


def each_lane(
    emitter: Emitter,
    node: fx.Node,
    operand: Any,
    body: Callable[[Coords], None],
    *,
    by_vectors: bool = True,
) -> None:
    """Write `body` for the lanes of an operand that are valid for a node."""
    valid = options(node)
    over_lanes(emitter, operand, valid["bounds"], valid["masks"], body, by_vectors=by_vectors)


def over_lanes(
    emitter: Emitter,
    operand: Any,
    bounds: Sequence[Bound],
    masked_by: Sequence[Any],
    body: Callable[[Coords], None],
    *,
    by_vectors: bool = False,
) -> None:
    """Write `body` for the lanes of an operand that satisfy bounds and masks."""
    masks = [emitter.tile(mask) for mask in masked_by]
    type = operand.meta["type"]

    def visit(coords: Coords) -> None:
        mask = mask_at(emitter, masks, coords)
        if mask is None:
            body(coords)
        elif mask.lanes:
            _all_or_some(emitter, coords, mask, body, visit)
        else:
            with emitter.w.branch(mask), emitter.scope():
                body(coords)

    emitter.sweep_inside(type.shape, bounds, visit, type.dtype if by_vectors else None)


def _all_or_some(
    emitter: Emitter,
    coords: Coords,
    mask: Value,
    body: Callable[[Coords], None],
    masked: Callable[[Coords], None],
) -> None:
    """Write `body` for a vector if no lane is masked off, else lane by lane."""
    w = emitter.w
    every = w.emit(f"vector.reduction <and>, {mask} : {mask.type} into i1", "i1")
    w.line(f"scf.if {every} {{")
    with emitter.scope():
        body(coords)
    w.line("} else {")
    with w.loop(0, mask.lanes) as loop, emitter.scope():
        masked(tuple(Coord(w.add(c.base, loop.counter)) if c.lanes else c for c in coords))
    w.line("}")


def mask_at(emitter: Emitter, masks: Sequence[TileValue], coords: Coords) -> Value | None:
    """Whether lanes satisfy masks; None if there are no masks."""
    found: Value | None = None
    for mask in masks:
        holds = emitter.spread(emitter.at(mask, broadcast_coords(mask, coords)), coords)
        found = holds if found is None else emitter.w.binary("arith.andi", found, holds)
    return found


def _fill_missing(emitter: Emitter, node: fx.Node) -> TileValue:
    """Fill the whole tile, then write the valid lanes over it."""
    tile, other = emitter.tile(arguments(node)[0]), emitter.tile(arguments(node)[1])
    type = node.meta["type"]
    if not options(node)["masks"] and not emitter.is_guarded(type.shape, options(node)["bounds"]):
        return tile
    buffer = emitter.allocate(type.shape, type.dtype)
    emitter.fill(buffer, other, emitter.extents(type.shape, ()))
    each_lane(
        emitter,
        node,
        arguments(node)[0],
        lambda coords: emitter.put(buffer, coords, emitter.at(tile, coords)),
    )
    return emitter.tile_in(buffer, emitter.sizes(type.shape))


def _to_index(emitter: Emitter, node: fx.Node) -> None:
    tile, symbol = emitter.tile(arguments(node)[0]), arguments(node)[1]
    value = emitter.at(tile, ())
    emitter.known[symbol] = emitter.w.convert("arith.index_cast", value, "index")


RULES[memory.load] = _load
RULES[memory.gather] = _gather
RULES[memory.in_bounds] = _in_bounds
RULES[memory.store] = _store
RULES[memory.scatter] = _scatter
RULES[memory.fill_missing] = _fill_missing
RULES[memory.to_index] = _to_index
