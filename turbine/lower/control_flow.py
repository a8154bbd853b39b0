"""Control flow: torch.cond, while_loop, scan and map as branches and loops of the compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from turbine import errors
from turbine.mlir import torch_rows, torch_values
from turbine.mlir.ir import Block, Location, Type, Value

if TYPE_CHECKING:
    from turbine.lower.body import Body

# Imports a node into a body; returns its results.
Rule = Callable[["Body", fx.Node, Location], Sequence[Value]]


def _import_cond(body: Body, node: fx.Node, loc: Location) -> Sequence[Value]:
    condition, chosen, other, operands = _arguments(node)
    # Emit values that both branches use before them.
    values = [body.operand(operand, loc) for operand in operands]
    branches = [partial(body.import_graph, graph, values) for graph in (chosen, other)]
    truth = body.operand(condition, loc)
    return torch_values.branch(truth, _result_types(body, node), branches, loc)


def _import_while_loop(body: Body, node: fx.Node, loc: Location) -> Sequence[Value]:
    condition, graph, carried, constant = _arguments(node)
    types = _result_types(body, node)
    initial = _convert(_operands(body, carried, loc), types, loc)
    fixed = _operands(body, constant, loc)

    def holds(block: Block, state: Sequence[Value]) -> Value:
        (truth,) = body.import_graph(condition, [*state, *fixed], block)
        return truth

    def turn(block: Block, state: Sequence[Value]) -> Sequence[Value]:
        return body.import_graph(graph, [*state, *fixed], block)

    return torch_values.while_loop(holds, turn, initial, loc)


def _import_scan(body: Body, node: fx.Node, loc: Location) -> Sequence[Value]:
    graph, carried, rows, constant = _arguments(node)
    return _import_row_loop(body, node, loc, graph, carried, rows, constant)


def _import_map(body: Body, node: fx.Node, loc: Location) -> Sequence[Value]:
    graph, rows, constant = _arguments(node)
    return _import_row_loop(body, node, loc, graph, (), rows, constant)


def _import_row_loop(
    body: Body,
    node: fx.Node,
    loc: Location,
    graph: fx.Node,
    carried: Sequence[Any],
    rows: Sequence[Any],
    constant: Sequence[Any],
) -> Sequence[Value]:
    """A loop over rows: the last carried values, and the other results of all turns, stacked."""
    types = _result_types(body, node)
    count = len(carried)
    initial = _convert(_operands(body, carried, loc), types[:count], loc)
    inputs, fixed = _operands(body, rows, loc), _operands(body, constant, loc)
    sizes = _Sizes(node, [*carried, *rows, *constant], [*initial, *inputs, *fixed])
    stacked = [
        torch_rows.empty(sizes.find(value.shape), of)
        for value, of in zip(node.meta["val"][count:], types[count:], strict=True)
    ]

    def turn(block: Block, index: Value, state: Sequence[Value]) -> Sequence[Value]:
        taken = [torch_rows.take(tensor, index) for tensor in inputs]
        results = body.import_graph(graph, [*state[:count], *taken, *fixed], block)
        pairs = zip(state[count:], results[count:], strict=True)
        return [*results[:count], *(torch_rows.put(rows, index, row) for rows, row in pairs)]

    turns = torch_rows.size(inputs[0], 0)
    return torch_values.row_loop(turns, turn, [*initial, *stacked], loc)


class _Sizes:
    """Sizes of a node's results, by those of the operands."""

    def __init__(self, node: fx.Node, operands: Sequence[Any], values: Sequence[Value]) -> None:
        self.node = node
        self.operands = operands
        self.values = values

    def find(self, shape: Sequence[int | torch.SymInt]) -> list[Value | int]:
        return [self._find(size) if isinstance(size, torch.SymInt) else size for size in shape]

    def _find(self, wanted: torch.SymInt) -> Value:
        for operand, value in zip(self.operands, self.values, strict=True):
            example = operand.meta["val"] if isinstance(operand, fx.Node) else operand
            sizes = example.shape if isinstance(example, torch.Tensor) else [example]
            for axis, size in enumerate(sizes):
                if isinstance(size, torch.SymInt) and size.node.expr == wanted.node.expr:
                    is_tensor = isinstance(example, torch.Tensor)
                    return torch_rows.size(value, axis) if is_tensor else value
        raise errors.UnsupportedOp(
            f"{self.node.target} returns a tensor with a size, {wanted}, that no operand has",
            where=errors.line_of_trace(self.node.stack_trace),
            hint="pass a tensor of that size to the loop",
        )


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _operands(body: Body, given: Sequence[Any], loc: Location) -> list[Value]:
    return [body.operand(one, loc) for one in given]


def _result_types(body: Body, node: fx.Node) -> list[Type]:
    return [body.result_type(value) for value in node.meta["val"]]


def _convert(values: Sequence[Value], types: Sequence[Type], loc: Location) -> list[Value]:
    """Values cast to types that may have more dynamic sizes."""
    return [torch_values.convert(v, of, loc) for v, of in zip(values, types, strict=True)]


RULES: dict[str, Rule] = {
    "cond": _import_cond,
    "while_loop": _import_while_loop,
    "scan": _import_scan,
    "map_impl": _import_map,
}
