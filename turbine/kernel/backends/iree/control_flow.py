"""Rules of loops and branches: what they carry lies in memory and is changed there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from turbine.algebra import Expr
from turbine.kernel.backends.iree.emitter import RULES, Emitter
from turbine.kernel.backends.iree.memory import mask_at
from turbine.kernel.backends.iree.tiles import Coords, ScratchBuffer, TileValue
from turbine.kernel.lang import control_flow, products
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.trace.op import arguments
from turbine.kernel.trace.validity import Valid
from turbine.mlir.writer import Index, Value


def _for(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    start, stop, step, init, body, captured = arguments(node)
    assert isinstance(body, Body)
    assert isinstance(step, int)
    assert body.counter is not None
    w = emitter.w
    buffers = _allocate_carried(emitter, init)
    first, end = emitter.index(start), emitter.index(stop)
    limits = (0, _turns(emitter, first, end, step)) if _is_counted(start, stop, step) else None
    with w.loop(*(limits or (first, end, step))) as loop, emitter.scope():
        turn: Index = loop.counter
        if limits is not None:
            turn = w.add(first, w.mul(loop.counter, step))
        emitter.known[body.counter] = turn
        _write_iteration(emitter, body, buffers, captured)
    return _load_carried(emitter, buffers, init)


def _is_counted(start: Expr, stop: Expr, step: int) -> bool:
    """Whether turns are counted: loops of MLIR go up, and never end if they go beyond i64."""
    is_computed = any(s.kind == "data" for s in (*start.symbols, *stop.symbols))
    return step < 0 or (step > 1 and is_computed)


def _turns(emitter: Emitter, first: Index, end: Index, step: int) -> Index:
    w, size = emitter.w, abs(step)
    way = w.sub(end, first) if step > 0 else w.sub(first, end)
    return w.floordiv(w.add(way, size - 1), size)


def _while(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    asked, of_asked, init, body, captured = arguments(node)
    assert isinstance(asked, Body)
    assert isinstance(body, Body)
    w = emitter.w
    buffers = _allocate_carried(emitter, init)
    w.line("scf.while : () -> () {")
    w.depth += 1
    with emitter.scope():
        _enter(emitter, asked, buffers, of_asked)
        emitter.region(asked.graph)
        (condition,) = output_of(asked.graph)
        w.line(f"scf.condition({emitter.at(emitter.tile(condition), ())})")
    w.depth -= 1
    w.line("} do {")
    w.depth += 1
    with emitter.scope():
        _write_iteration(emitter, body, buffers, captured)
        w.line("scf.yield")
    w.depth -= 1
    w.line("}")
    return _load_carried(emitter, buffers, init)


def _allocate_carried(emitter: Emitter, init: Sequence[fx.Node]) -> list[ScratchBuffer]:
    """Scratch buffers for the carried values, filled with the initial ones."""
    buffers = []
    for node in init:
        tile, type = emitter.tile(node), node.meta["type"]
        buffer = emitter.allocate(type.shape, type.dtype)
        emitter.fill(buffer, tile, emitter.extents(type.shape, node.meta["valid"].bounds))
        buffers.append(buffer)
    return buffers


def _load_carried(
    emitter: Emitter, buffers: Sequence[ScratchBuffer], init: Sequence[fx.Node]
) -> list[TileValue]:
    shapes = [emitter.sizes(node.meta["type"].shape) for node in init]
    return [emitter.tile_in(buffer, shape) for buffer, shape in zip(buffers, shapes, strict=True)]


def _enter(
    emitter: Emitter, body: Body, buffers: Sequence[ScratchBuffer], captured: Sequence[fx.Node]
) -> list[fx.Node]:
    """Give a region what it carries and what it uses from around it."""
    places = [node for node in body.graph.nodes if node.op == "placeholder"]
    for place, buffer in zip(places, buffers, strict=False):
        emitter.values[place] = emitter.tile_in(buffer, emitter.sizes(place.meta["type"].shape))
    for place, node in zip(places[body.carried :], captured, strict=True):
        emitter.values[place] = emitter.values[node]
    return places[: body.carried]


def _write_iteration(
    emitter: Emitter, body: Body, buffers: Sequence[ScratchBuffer], captured: Sequence[fx.Node]
) -> None:
    """One iteration: the region, then the carried values are replaced."""
    carried = _enter(emitter, body, buffers, captured)
    outputs = output_of(body.graph)
    for place, out, buffer, valid in zip(carried, outputs, buffers, body.valid, strict=True):
        if not valid.masks and _only_feeds(place, out, outputs):
            emitter.destinations[out] = buffer
    emitter.region(body.graph)
    _replace(emitter, body, buffers, outputs)


def _only_feeds(place: fx.Node, out: fx.Node, outputs: Sequence[fx.Node]) -> bool:
    """Whether all that is done with a carried tile is to add a product to it."""
    if out.target is not products.dot or len(out.users) != 1 or list(outputs).count(out) != 1:
        return False
    node = place
    while len(node.users) == 1:
        (user,) = node.users
        if user is out:
            return out.args[2] is node and node not in (out.args[0], out.args[1])
        if getattr(user.target, "kind", "") != "pointwise":
            return False
        node = user
    return False


def _replace(
    emitter: Emitter, body: Body, buffers: Sequence[ScratchBuffer], outputs: Sequence[fx.Node]
) -> None:
    """Put the new values where the old ones are; none is lost that another still needs."""
    tiles = [emitter.tile(node) for node in outputs]
    names = {buffer.name for buffer in buffers}
    last: list[tuple[fx.Node, TileValue, ScratchBuffer, Valid]] = []
    for own, (node, tile, buffer) in enumerate(zip(outputs, tiles, buffers, strict=True)):
        if tile.buffer == buffer:
            continue
        others = [t for place, t in enumerate(tiles) if place != own]
        is_read = any(buffer.name in other.reads for other in others)
        crosses = any(
            name in names and (name != buffer.name or not same) for name, same in tile.reads.items()
        )
        if (is_read or crosses) and not (tile.is_single and tile.weight == 0):
            tile = _materialize_copy(emitter, node, tile)
        last.append((node, tile, buffer, body.valid[own]))
    for node, tile, buffer, valid in last:
        _put(emitter, node, tile, buffer, valid)


def _materialize_copy(emitter: Emitter, node: fx.Node, tile: TileValue) -> TileValue:
    """A tile in a scratch buffer of its own."""
    type = node.meta["type"]
    buffer = emitter.allocate(type.shape, type.dtype)
    emitter.fill(buffer, tile, emitter.extents(type.shape, node.meta["valid"].bounds))
    return emitter.tile_in(buffer, tile.shape)


def _put(
    emitter: Emitter, node: fx.Node, tile: TileValue, buffer: ScratchBuffer, valid: Valid
) -> None:
    """Write the lanes that hold a value."""
    type = node.meta["type"]
    masks = [emitter.tile(mask) for mask in valid.masks]

    def body(coords: Coords) -> None:
        taking = mask_at(emitter, masks, coords)
        new = emitter.spread(emitter.at(tile, coords), coords)
        if taking is not None:
            old = emitter.tile_in(buffer, tile.shape).compute(coords)
            new = emitter.w.select(taking, new, old)
        emitter.put(buffer, coords, new)

    emitter.sweep_inside(type.shape, valid.bounds, body, tile.dtype)


def _cond(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    condition, passed, one, of_one, other, of_other = arguments(node)
    assert isinstance(one, Body)
    assert isinstance(other, Body)
    types = [out.meta["type"] for out in output_of(one.graph)]
    buffers = [emitter.allocate(type.shape, type.dtype) for type in types]
    w = emitter.w
    holds: Value = emitter.at(emitter.tile(condition), ())
    w.line(f"scf.if {holds} {{")
    _branch(emitter, one, passed, of_one, buffers)
    w.line("} else {")
    _branch(emitter, other, passed, of_other, buffers)
    w.line("}")
    shapes = [emitter.sizes(type.shape) for type in types]
    return [emitter.tile_in(buffer, shape) for buffer, shape in zip(buffers, shapes, strict=True)]


def _branch(
    emitter: Emitter, body: Body, passed: Any, captured: Any, buffers: Sequence[ScratchBuffer]
) -> None:
    emitter.w.depth += 1
    with emitter.scope():
        places = [node for node in body.graph.nodes if node.op == "placeholder"]
        for place, node in zip(places, [*passed, *captured], strict=True):
            emitter.values[place] = emitter.values[node]
        emitter.region(body.graph)
        for out, buffer in zip(output_of(body.graph), buffers, strict=True):
            type = out.meta["type"]
            extents = emitter.extents(type.shape, out.meta["valid"].bounds)
            emitter.fill(buffer, emitter.tile(out), extents)
    emitter.w.depth -= 1


def _result(emitter: Emitter, node: fx.Node) -> TileValue:
    values, place = arguments(node)
    found: TileValue = emitter.values[values][place]
    return found


RULES[control_flow.for_op] = _for
RULES[control_flow.while_op] = _while
RULES[control_flow.cond_op] = _cond
RULES[control_flow.result] = _result
