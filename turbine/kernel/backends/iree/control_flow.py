"""Rules of loops and branches: carried values are in scratch buffers, updated in place."""

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
    varying = {symbol.kind for bound in (start, stop) for symbol in bound.symbols} - {"size"}
    emitter.is_uneven |= bool(varying)
    first, end = emitter.index(start), emitter.index(stop)
    limits = (
        (0, _iteration_count(emitter, first, end, step)) if _is_counted(start, stop, step) else None
    )
    with w.loop(*(limits or (first, end, step))) as loop, emitter.scope():
        counter: Index = loop.counter
        if limits is not None:
            counter = w.add(first, w.mul(loop.counter, step))
        emitter.known[body.counter] = counter
        _write_iteration(emitter, body, buffers, captured)
    return _load_carried(emitter, buffers, init)


def _is_counted(start: Expr, stop: Expr, step: int) -> bool:
    """Whether to loop over 0..n-1: scf.for only counts up, and i64 overflow never ends."""
    is_computed = any(s.kind == "data" for s in (*start.symbols, *stop.symbols))
    return step < 0 or (step > 1 and is_computed)


def _iteration_count(emitter: Emitter, first: Index, end: Index, step: int) -> Index:
    w, size = emitter.w, abs(step)
    distance = w.sub(end, first) if step > 0 else w.sub(first, end)
    return w.floordiv(w.add(distance, size - 1), size)


def _while(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    test, of_test, init, body, captured = arguments(node)
    assert isinstance(test, Body)
    assert isinstance(body, Body)
    w = emitter.w
    emitter.is_uneven = True
    buffers = _allocate_carried(emitter, init)
    w.line("scf.while : () -> () {")
    w.depth += 1
    with emitter.scope():
        _bind(emitter, test, buffers, of_test)
        emitter.region(test.graph)
        (condition,) = output_of(test.graph)
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
    """Allocate scratch buffers for carried values and store the initial ones."""
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


def _bind(
    emitter: Emitter, body: Body, buffers: Sequence[ScratchBuffer], captured: Sequence[fx.Node]
) -> list[fx.Node]:
    """Bind the placeholders of a region to carried and captured values."""
    places = [node for node in body.graph.nodes if node.op == "placeholder"]
    for place, buffer in zip(places, buffers, strict=False):
        emitter.values[place] = emitter.tile_in(buffer, emitter.sizes(place.meta["type"].shape))
    for place, node in zip(places[body.carried :], captured, strict=True):
        emitter.values[place] = emitter.values[node]
    return places[: body.carried]


def _write_iteration(
    emitter: Emitter, body: Body, buffers: Sequence[ScratchBuffer], captured: Sequence[fx.Node]
) -> None:
    """Write one iteration: the region, then the update of the carried values."""
    carried = _bind(emitter, body, buffers, captured)
    outputs = output_of(body.graph)
    for place, out, buffer, valid in zip(carried, outputs, buffers, body.valid, strict=True):
        if not valid.masks and _is_accumulator(place, out, outputs):
            emitter.destinations[out] = buffer
    emitter.region(body.graph)
    _update(emitter, body, buffers, outputs)


def _is_accumulator(place: fx.Node, out: fx.Node, outputs: Sequence[fx.Node]) -> bool:
    """Whether the only use of a carried tile is to accumulate a dot."""
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


def _update(
    emitter: Emitter, body: Body, buffers: Sequence[ScratchBuffer], outputs: Sequence[fx.Node]
) -> None:
    """Overwrite the carried values; a value that another one still reads is copied first."""
    tiles = [emitter.tile(node) for node in outputs]
    names = {buffer.name for buffer in buffers}
    updates: list[tuple[fx.Node, TileValue, ScratchBuffer, Valid]] = []
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
        updates.append((node, tile, buffer, body.valid[own]))
    for node, tile, buffer, valid in updates:
        _store(emitter, node, tile, buffer, valid)


def _materialize_copy(emitter: Emitter, node: fx.Node, tile: TileValue) -> TileValue:
    """Copy a tile to a scratch buffer of its own."""
    type = node.meta["type"]
    buffer = emitter.allocate(type.shape, type.dtype)
    emitter.fill(buffer, tile, emitter.extents(type.shape, node.meta["valid"].bounds))
    return emitter.tile_in(buffer, tile.shape)


def _store(
    emitter: Emitter, node: fx.Node, tile: TileValue, buffer: ScratchBuffer, valid: Valid
) -> None:
    """Write the valid lanes to a buffer."""
    type = node.meta["type"]
    masks = [emitter.tile(mask) for mask in valid.masks]

    def body(coords: Coords) -> None:
        mask = mask_at(emitter, masks, coords)
        new = emitter.spread(emitter.at(tile, coords), coords)
        if mask is not None:
            old = emitter.tile_in(buffer, tile.shape).compute(coords)
            new = emitter.w.select(mask, new, old)
        emitter.put(buffer, coords, new)

    emitter.sweep_inside(type.shape, valid.bounds, body, tile.dtype)


def _cond(emitter: Emitter, node: fx.Node) -> list[TileValue]:
    condition, passed, one, of_one, other, of_other = arguments(node)
    assert isinstance(one, Body)
    assert isinstance(other, Body)
    types = [out.meta["type"] for out in output_of(one.graph)]
    buffers = [emitter.allocate(type.shape, type.dtype) for type in types]
    w = emitter.w
    emitter.is_uneven = True
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
