"""Control flow, scans, matmuls and debugging of an interpreted kernel."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from turbine.algebra import Expr
from turbine.kernel.backends.element_types import widen
from turbine.kernel.backends.interpret.frame import Frame, Rule, arguments_of, with_conditions
from turbine.kernel.lang import control_flow, debugging, memory, products, scans
from turbine.kernel.program import messages
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.tracer import IndexExpr


def _dot(frame: Frame, node: fx.Node) -> Tensor:
    operands = [frame.values[operand] for operand in arguments_of(node)]
    lanes = [
        frame.lanes(b, m, v.meta["type"].shape)
        for v, b, m in with_conditions(node, arguments_of(node)[:2])
    ]
    wide = [widen(operand) for operand in operands]
    product: Tensor = products.dot.meaning(*wide, *lanes)
    return product.to(operands[2].dtype)


def _to_index(frame: Frame, node: fx.Node) -> int:
    value, symbol = arguments_of(node)
    frame.known[symbol] = int(frame.values[value])
    return frame.known[symbol]


def _for(frame: Frame, node: fx.Node) -> list[Any]:
    start, stop, step, init, body, captured = arguments_of(node)
    values = [frame.values[n] for n in init]
    for iteration in range(frame.evaluate(start), frame.evaluate(stop), step):
        frame.known[body.counter] = iteration
        after = frame.run_region(body, values, captured)
        values = frame.keep_masked(body, values, after)
    return values


def _while(frame: Frame, node: fx.Node) -> list[Any]:
    condition, of_condition, init, body, captured = arguments_of(node)
    values = [frame.values[n] for n in init]
    while bool(frame.run_region(condition, values, of_condition)[0]):
        after = frame.run_region(body, values, captured)
        values = frame.keep_masked(body, values, after)
    return values


def _cond(frame: Frame, node: fx.Node) -> list[Any]:
    condition, passed, one, of_one, other, of_other = arguments_of(node)
    body, captured = (one, of_one) if bool(frame.values[condition]) else (other, of_other)
    values = [frame.values[n] for n in passed]
    return list(frame.run_region(body, values, captured))


def _scan(frame: Frame, node: fx.Node) -> tuple[Tensor, ...]:
    operands, axis, reverse, body, captured = arguments_of(node)
    tiles = [frame.values[n] for n in operands]
    lanes = frame.within(node, operands[0].meta["type"].shape)
    results = tuple(tile.clone(memory_format=torch.contiguous_format) for tile in tiles)
    for row in _rows(lanes, axis, bool(reverse)):
        running: Sequence[Tensor] | None = None
        for lane in row:
            here = [tile[lane] for tile in tiles]
            both = None if running is None else [*running, *here]
            running = here if both is None else frame.run_region(body, both, captured)
            for result, value in zip(results, running, strict=True):
                result[lane] = value
    return results


def _reduce(frame: Frame, node: fx.Node) -> tuple[Tensor, ...]:
    operands, axis, starts, body, captured = arguments_of(node)
    tiles = [frame.values[n] for n in operands]
    lanes = frame.within(node, operands[0].meta["type"].shape)
    first = [frame.values[n] for n in starts]
    columns: list[list[Tensor]] = [[] for _ in tiles]
    for row in _rows(lanes, axis):
        running: Sequence[Tensor] = first
        for lane in row:
            both = [*running, *(tile[lane] for tile in tiles)]
            running = frame.run_region(body, both, captured)
        for column, value in zip(columns, running, strict=True):
            column.append(value)
    shape = [size for place, size in enumerate(lanes.shape) if place != axis]
    return tuple(
        torch.stack(column).reshape(shape) if column else tile.new_empty(shape)
        for column, tile in zip(columns, tiles, strict=True)
    )


def _rows(lanes: Tensor, axis: int, reverse: bool = False) -> Iterator[list[tuple[int, ...]]]:
    """The lanes that are not masked off, row by row along an axis."""
    others = [range(size) for place, size in enumerate(lanes.shape) if place != axis]
    along = range(lanes.shape[axis])
    for row in itertools.product(*others):
        places = [(*row[:axis], n, *row[axis:]) for n in (reversed(along) if reverse else along)]
        yield [place for place in places if bool(lanes[place])]


def _print(frame: Frame, node: fx.Node) -> None:
    values, label = arguments_of(node)
    rows = with_conditions(node, values)
    texts = [v if isinstance(v, str) else _format_tile(frame, v, b, m) for v, b, m in rows]
    site = messages.Site(node.meta.get("line"), label, ())
    sys.stdout.write(messages.line(site, frame.ids, texts))


def _format_tile(frame: Frame, value: fx.Node, bounds: Any, masks: Any) -> str:
    """The numbers of a tile, with a dot for masked-off elements."""
    lanes = frame.lanes(bounds, masks, value.meta["type"].shape)
    numbers = (
        widen(frame.values[value])
        if value.meta["type"].dtype.kind == "float"
        else frame.values[value]
    )
    valid = lanes.flatten().tolist()
    return messages.format_tile(numbers.flatten().tolist(), valid, tuple(lanes.shape))


def _assert(frame: Frame, node: fx.Node) -> None:
    condition, message = arguments_of(node)
    lanes = frame.within(node, condition.meta["type"].shape)
    failing = torch.nonzero(~frame.values[condition] & lanes)
    if not len(failing):
        return
    lane = f", lane {tuple(failing[0].tolist())}" if failing.shape[1] else ""
    raise messages.assertion_error(message, frame.ids, lane, node.meta.get("line"))


def _breakpoint(frame: Frame, node: fx.Node) -> None:
    """Enter the debugger; `values` has the kernel's variables, `nodes` all computed values."""
    names, variables = arguments_of(node)
    found = [frame.values[v] if isinstance(v, fx.Node) else v for v in variables]
    pairs = zip(names, found, strict=True)
    values = {
        name: IndexExpr(v) if _is_unknown(frame, v) else frame.evaluate(v) for name, v in pairs
    }
    nodes, program, line = _values_by_name(frame), frame.ids, node.meta.get("line")
    breakpoint()
    del values, nodes, program, line


def _is_unknown(frame: Frame, value: Any) -> bool:
    """Whether a size is unknown in this call, because the kernel does not use it."""
    return isinstance(value, Expr) and not value.symbols <= frame.known.keys()


def _values_by_name(frame: Frame) -> dict[str, Any]:
    return {node.name: frame.evaluate(value) for node, value in frame.values.items()}


def _result(frame: Frame, node: fx.Node) -> Any:
    values, place = arguments_of(node)
    return frame.values[values][place]


RULES: dict[Op, Rule] = {
    memory.to_index: _to_index,
    products.dot: _dot,
    control_flow.for_op: _for,
    control_flow.while_op: _while,
    control_flow.cond_op: _cond,
    control_flow.result: _result,
    scans.scan_op: _scan,
    scans.reduce_op: _reduce,
    debugging.print_op: _print,
    debugging.assert_op: _assert,
    debugging.breakpoint_op: _breakpoint,
}
