"""Loads, stores and atomics of an interpreted kernel, with checks for races and bad indices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from turbine import errors
from turbine.algebra import as_expr
from turbine.kernel.backends.element_types import call_narrowed, widen
from turbine.kernel.backends.interpret.frame import Frame, Rule, arguments_of
from turbine.kernel.backends.interpret.memory import (
    BITS,
    NOBODY,
    SEVERAL,
    SHARED,
    Memory,
    by_atomic,
    fill_poison,
)
from turbine.kernel.lang import arithmetic, atomics, index_checks, memory
from turbine.kernel.program import messages
from turbine.kernel.trace.op import Op


def _load(frame: Frame, node: fx.Node) -> Tensor:
    buffer, index, shape = arguments_of(node)
    source = frame.values[buffer]
    assert isinstance(source, Memory)
    start, sizes = frame.evaluate(index), frame.sizes(shape)
    lanes = frame.within(node, shape)
    _check_written(
        frame, node, source, memory.load.meaning(source.writer, start, sizes, lanes), lanes
    )
    if bool(lanes.any()):
        _record_read(frame, node, source, tuple(map(torch.add, _lane_indices(lanes), start)))
    raw = memory.load.meaning(_as_indexable(source.tensor), start, sizes, lanes)
    return _poison_masked(raw.to(source.tensor.dtype), lanes)


def _gather(frame: Frame, node: fx.Node) -> Tensor:
    buffer, names = arguments_of(node)
    source, index = frame.values[buffer], [frame.values[i] for i in names]
    lanes = frame.within(node, node.meta["type"].shape)
    _check_written(frame, node, source, memory.gather.meaning(source.writer, index), lanes)
    _record_read(frame, node, source, tuple(i.expand(lanes.shape)[lanes] for i in index))
    raw = memory.gather.meaning(_as_indexable(source.tensor), index)
    return _poison_masked(raw.to(source.tensor.dtype), lanes)


def _as_indexable(tensor: Tensor) -> Tensor:
    """Convert a tensor to a dtype that torch can index."""
    indexable: Tensor = widen(tensor)
    return indexable


def _poison_masked(tile: Tensor, lanes: Tensor) -> Tensor:
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
    if bool(((writers == NOBODY) & lanes).any()):
        raise errors.KernelError(
            f"program {frame.ids} reads elements of {source.name} that are uninitialized",
            where=node.meta.get("line"),
            hint="write them first, in the same program",
        )


def _record_read(frame: Frame, node: fx.Node, source: Memory, at: Any) -> None:
    """Record the reader of elements; raise if another program wrote them."""
    writers, readers = source.writer[at], source.reader[at]
    others = (writers >= 0) & (writers != frame.number)
    if bool(others.any()):
        raise _race_error(frame, node, source, "reads", f"number {int(writers[others][0])} writes")
    is_first = (readers == NOBODY) | (readers == frame.number)
    source.reader[at] = torch.where(is_first, frame.number, SEVERAL)


def _check_unread(frame: Frame, node: fx.Node, target: Memory, readers: Tensor) -> None:
    others = (readers != NOBODY) & (readers != frame.number)
    if bool(others.any()):
        other = int(readers[others][0])
        named = "several read" if other == SEVERAL else f"number {other} reads"
        raise _race_error(frame, node, target, "writes", named)


def _race_error(
    frame: Frame, node: fx.Node, buffer: Memory, does: str, other: str
) -> errors.KernelError:
    return errors.KernelError(
        f"program number {frame.number}, {frame.ids}, {does} an element of {buffer.name} that "
        f"{other}: the order is undefined",
        where=node.meta.get("line"),
        hint="read from an InputBuffer and write to an OutputBuffer, or let each program read only "
        "elements that it writes",
    )


def _store(frame: Frame, node: fx.Node) -> None:
    buffer, index, value = arguments_of(node)
    lanes = frame.within(node, value.meta["type"].shape)
    if not bool(lanes.any()):
        return
    places = _lane_indices(lanes)
    at = tuple(place + first for place, first in zip(places, frame.evaluate(index), strict=True))
    _write(frame, node, frame.values[buffer], at, frame.values[value], places)


def _lane_indices(lanes: Tensor) -> tuple[Tensor, ...]:
    """The indices of true lanes, one tensor for each axis."""
    return tuple(torch.nonzero(lanes).T)


def _scatter(frame: Frame, node: fx.Node) -> None:
    buffer, index, value = arguments_of(node)
    lanes = frame.within(node, value.meta["type"].shape)
    at = tuple(frame.values[i][lanes] for i in index)
    places = torch.nonzero(lanes, as_tuple=True)
    _write(frame, node, frame.values[buffer], at, frame.values[value], places)


def _write(
    frame: Frame, node: fx.Node, target: Memory, at: Any, value: Tensor, places: Any
) -> None:
    _check_single_writer(frame, node, target, target.writer[at])
    _check_unread(frame, node, target, target.reader[at])
    target.writer[at] = frame.number
    bits = BITS.get(target.tensor.dtype)  # torch cannot index some dtypes
    if bits is None:
        target.tensor[at] = value[places]
    else:
        target.tensor.view(bits)[at] = value.contiguous().view(bits)[places]


def _check_single_writer(frame: Frame, node: fx.Node, target: Memory, writers: Tensor) -> None:
    is_atomic = writers <= by_atomic(0)
    numbers = torch.where(is_atomic, by_atomic(0) - writers, writers)
    others = (is_atomic | (writers >= 0)) & (numbers != frame.number)
    if bool(others.any()):
        other = int(writers[others].flatten()[0])
        named = f"number {other}" if other >= 0 else "one with an atomic such as tkl.atomic_add"
        raise errors.KernelError(
            f"two programs store to one element of {target.name}: {named} and "
            f"{frame.number}, {frame.ids}",
            where=node.meta.get("line"),
            hint="let each program write elements of its own, or use tkl.atomic_add",
        )


def _atomic_block(frame: Frame, node: fx.Node) -> Tensor:
    places, index = _places(frame, node), arguments_of(node)[1]
    start = torch.tensor(frame.evaluate(index), dtype=torch.int64)
    return _atomic(frame, node, places, places + start)


def _atomic_scatter(frame: Frame, node: fx.Node) -> Tensor:
    places, index = _places(frame, node), arguments_of(node)[1]
    named = [frame.values[i][tuple(places.T)] for i in index]
    return _atomic(frame, node, places, torch.stack(named, dim=1))


def _places(frame: Frame, node: fx.Node) -> Tensor:
    return torch.nonzero(frame.within(node, arguments_of(node)[2].meta["type"].shape))


def _atomic(frame: Frame, node: fx.Node, places: Tensor, targets: Tensor) -> Tensor:
    buffer, _, value, kind = arguments_of(node)
    target = frame.values[buffer]
    at = tuple(targets.T)
    writers = target.writer[at]
    _check_single_writer(frame, node, target, torch.where(writers >= 0, writers, frame.number))
    mine = by_atomic(frame.number)
    is_shared = (writers <= by_atomic(0)) & (writers != mine)
    target.writer[at] = torch.where(writers >= 0, writers, torch.where(is_shared, SHARED, mine))
    change = {"add": arithmetic.add, "max": arithmetic.maximum, "min": arithmetic.minimum}[kind]

    def apply_change(old: Tensor, by: Tensor) -> Tensor:
        result: Tensor = call_narrowed(change, [old, by], {}, node.meta["type"])
        return result

    return atomics.update(target.tensor, places, targets, frame.values[value], apply_change)


def _check_index(frame: Frame, node: fx.Node) -> None:
    index, buffer, axis, shape, _ = arguments_of(node)
    size = frame.values[buffer].tensor.shape[axis]
    lanes = frame.within(node, shape)
    values = frame.values[index].expand(lanes.shape)[lanes]
    bad = values[(values < 0) | (values >= size)]
    if len(bad):
        indexed = messages.Indexed(frame.values[buffer].name, axis, as_expr(size))
        line = node.meta.get("line")
        raise messages.bad_index(indexed, size, int(bad[0]), frame.ids, line)


RULES: dict[Op, Rule] = {
    memory.load: _load,
    memory.gather: _gather,
    memory.store: _store,
    memory.scatter: _scatter,
    atomics.atomic_block: _atomic_block,
    atomics.atomic_scatter: _atomic_scatter,
    index_checks.check_index: _check_index,
}
