"""Rules of atomics: an instruction where the CPU has one, else programs run in sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.emitter import RULES, Emitter, Source
from turbine.kernel.backends.iree.memory import each_lane, indices, offset_coords, source
from turbine.kernel.backends.iree.pointwise import FORMS
from turbine.kernel.backends.iree.tiles import Coord, Coords, TileValue
from turbine.kernel.lang import arithmetic, atomics
from turbine.kernel.trace.op import arguments
from turbine.mlir.writer import Index, Value

_OPS = {"add": arithmetic.add, "max": arithmetic.maximum, "min": arithmetic.minimum}


def _instruction(kind: str, dtype: Dtype) -> str | None:
    """The `memref.atomic_rmw` kind for a dtype, if there is one."""
    if dtype.kind == "float":
        return "addf" if kind == "add" and dtype.bits >= 32 else None
    if kind == "add":
        return "addi"
    return f"{kind}{'s' if dtype.kind == 'int' else 'u'}"


def _block(emitter: Emitter, node: fx.Node) -> TileValue | None:
    buffer = source(emitter, arguments(node)[0])
    offsets = [emitter.index(offset) for offset in arguments(node)[1]]

    def places(coords: Coords) -> list[Index]:
        return [place.base for place in offset_coords(emitter, coords, offsets)]

    return _update(emitter, node, buffer, places)


def _scatter(emitter: Emitter, node: fx.Node) -> TileValue | None:
    buffer = source(emitter, arguments(node)[0])
    index = [emitter.tile(i) for i in arguments(node)[1]]

    def places(coords: Coords) -> Sequence[Index]:
        return indices(emitter, index, coords)

    return _update(emitter, node, buffer, places)


def _update(
    emitter: Emitter,
    node: fx.Node,
    buffer: Source,
    places: Callable[[Coords], Sequence[Index]],
) -> TileValue | None:
    """Update elements lane by lane; return the old values if they are used."""
    operand: Any = arguments(node)[2]
    kind: Any = arguments(node)[3]
    value = emitter.tile(operand)
    type = node.meta["type"]
    old_values = emitter.allocate(type.shape, type.dtype) if node.users else None

    def body(coords: Coords) -> None:
        old = _update_element(
            emitter, buffer, kind, list(places(coords)), emitter.at(value, coords)
        )
        if old_values is not None:
            emitter.put(old_values, coords, old)

    each_lane(emitter, node, operand, body, by_vectors=False)
    return None if old_values is None else emitter.tile_in(old_values, emitter.sizes(type.shape))


def _update_element(
    emitter: Emitter, buffer: Source, kind: str, places: Sequence[Index], value: Value
) -> Value:
    """Update one element; return the old value."""
    w, dtype = emitter.w, buffer.dtype
    instruction = _instruction(kind, dtype)
    if instruction is not None:
        listed = ", ".join(str(w.index(place)) for place in places)
        text = f"memref.atomic_rmw {instruction} {value}, {buffer.name}[{listed}]"
        raw = w.emit(f"{text} : ({value.type}, {buffer.type}) -> {value.type}", value.element)
        return raw
    emitter.is_serial = True
    coords = [Coord(place) for place in places]
    old = elements.from_storage(w, emitter.read(buffer.name, buffer.type, dtype, coords), dtype)
    form, _ = FORMS[_OPS[kind]]
    new = form(w, dtype, [old, value])
    emitter.write(elements.to_store(w, new, dtype), buffer.name, buffer.type, coords)
    return old


RULES[atomics.atomic_block] = _block
RULES[atomics.atomic_scatter] = _scatter
