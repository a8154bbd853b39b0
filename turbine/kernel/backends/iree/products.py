"""The rule of products of tiles."""

from __future__ import annotations

from typing import Any

from torch import fx

from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.casting import converted
from turbine.kernel.backends.iree.emitter import RULES, Emitter, lanes_for
from turbine.kernel.backends.iree.memory import mask_at
from turbine.kernel.backends.iree.tiles import Coord, Coords, Room, TileValue
from turbine.kernel.backends.iree.writer import Value
from turbine.kernel.lang import products
from turbine.kernel.types import TileType


def _dot(emitter: Emitter, node: fx.Node) -> TileValue:
    a, b, acc = node.args
    type: TileType = node.meta["type"]
    room = _started(emitter, node, acc)
    left = _operand(emitter, node, 0, a)
    right = _operand(emitter, node, 1, b)
    extents = emitter.extents(type.shape, node.meta["valid"].bounds)
    summed: Any = [*node.kwargs["bounds"][0]]  # type: ignore[index]
    rows = emitter.extents(a.meta["type"].shape, summed)  # type: ignore[union-attr]
    columns = emitter.extents(b.meta["type"].shape, node.kwargs["bounds"][1])  # type: ignore[index,union-attr]
    first = emitter.w.max(rows[-1][0], columns[-2][0])
    end = emitter.w.min(rows[-1][1], columns[-2][1])
    w = emitter.w
    is_float = type.dtype.kind == "float"

    def body(coords: Coords) -> None:
        held = emitter.held(room, emitter.sizes(type.shape)).compute(coords)
        with w.loop(first, end, 1, [held]) as loop, emitter.scope():
            k = Coord(loop.counter)
            x = emitter.spread(left((*coords[:-1], k)), coords)
            y = emitter.spread(right((*coords[:-2], k, coords[-1])), coords)
            (total,) = loop.carried
            if is_float:
                text = f"math.fma {x}, {y}, {total} : {total.type}"
                loop.yielded = [w.emit(text, total.element, total.lanes)]
            else:
                loop.yielded = [w.binary("arith.addi", total, w.binary("arith.muli", x, y))]
        emitter.put(room, coords, loop.results[0])

    emitter.sweep(extents, lanes_for(type.dtype, extents), body)
    return emitter.held(room, emitter.sizes(type.shape))


def _started(emitter: Emitter, node: fx.Node, acc: Any) -> Room:
    """The room of the sum, with what the product is added to."""
    type = node.meta["type"]
    tile = emitter.tile(acc)
    room = emitter.destinations.get(node)
    if room is None:
        room = emitter.room(type.shape, type.dtype)
    if tile.room != room:
        emitter.fill(room, tile, emitter.extents(type.shape, node.meta["valid"].bounds))
    return room


def _operand(emitter: Emitter, node: fx.Node, place: int, operand: Any) -> Any:
    """How to read an operand, as the type of the sum; zero where it takes no part."""
    tile = emitter.tile(operand)
    if tile.weight > 1 and tile.room is None:
        tile = emitter.values[operand] = emitter.in_room(operand, tile)
    masks = [emitter.tile(mask) for mask in node.kwargs["masks"][place]]  # type: ignore[index]
    dtype = node.meta["type"].dtype

    def read(coords: Coords) -> Value:
        value = converted(emitter.w, emitter.at(tile, coords), tile.dtype, dtype)
        taking = mask_at(emitter, masks, coords)
        if taking is None:
            return value
        zero = elements.number(emitter.w, 0, dtype, taking.lanes)
        return emitter.w.select(taking, emitter.spread(value, coords), zero)

    return read


RULES[products.dot] = _dot
