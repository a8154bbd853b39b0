"""Pointwise ops that follow a matmul in a graph, which its kernel computes before it stores."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

import turbine.kernel.lang as tkl
from turbine import dtypes
from turbine.capture.effects import RESHAPES
from turbine.capture.reshapes import reshape
from turbine.capture.rounding import widened_from
from turbine.library import fusion_rules
from turbine.library.fused import fill_of
from turbine.library.fusion_rules import Call
from turbine.library.nodes import has_one_dynamic_size, have_equal_sizes

aten = torch.ops.aten
# Of one kernel: more need too many registers.
_MOST_NODES, _MOST_OPERANDS = 64, 4


@dataclass(frozen=True)
class Formula:
    """What a kernel computes of a tile of a product; equal formulas have equal text.

    The first placeholder of the graph is the product, the others are operands.
    """

    text: str
    rows: tuple[bool, ...]  # which operands are rows; the others are matrices
    graph: fx.Graph = field(compare=False, repr=False)

    @property
    def operands(self) -> list[torch.dtype]:
        """The dtypes of the operands."""
        _, *operands = self.graph.find_nodes(op="placeholder")
        return [node.meta["val"].dtype for node in operands]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result."""
        dtype: torch.dtype = self._result.meta["val"].dtype
        return dtype

    @property
    def _result(self) -> fx.Node:
        return self.graph.output_node().all_input_nodes[0]

    def compute(self, product: Any, operands: Sequence[Any]) -> Any:
        """The tile of the result."""
        given = iter((product, *operands))
        tiles: dict[fx.Node, Any] = {}
        for node in self.graph.nodes:
            number = fill_of(node)
            if node.op == "placeholder":
                tiles[node] = next(given).to(dtypes.of_torch(node.meta["val"].dtype))
            elif number is not None:
                tiles[node] = tkl.full((1,), number, dtypes.of_torch(node.meta["val"].dtype))
            elif node.op == "call_function":
                args, keywords = fx.map_arg((node.args, node.kwargs), tiles.__getitem__)
                (tiles[node],) = fusion_rules.apply(Call(node, 0), args, keywords)
        return tiles[self._result]


@dataclass(frozen=True)
class Epilogue:
    """The ops after a product, of which others read the last alone."""

    node: fx.Node  # the last
    formula: Formula
    operands: tuple[fx.Node, ...]

    def write_operands(self, columns: int) -> list[fx.Node]:
        """The operands as matrices of so many columns, or as rows."""
        shapes = [[columns] if is_row else [-1, columns] for is_row in self.formula.rows]
        return [
            reshape(node, shape, self.node)
            for node, shape in zip(self.operands, shapes, strict=True)
        ]


def find(product: fx.Node, claimed: set[fx.Node]) -> Epilogue | None:
    """The longest epilogue of a product without claimed ops; claim its ops."""
    inside, ends = {product}, []
    node = product.next
    while node.op != "output" and len(inside) < _MOST_NODES:
        if node not in claimed and _may_extend(node, inside, product):
            inside.add(node)
            if _is_end(node, inside, product):
                ends.append((node, {*inside}))
        node = node.next
    for end, nodes in reversed(ends):
        found = _Writer(product, nodes).epilogue(end)
        if found is not None:
            claimed |= nodes
            return found
    return None


def _may_extend(node: fx.Node, inside: set[fx.Node], product: fx.Node) -> bool:
    """Whether a node may follow those inside; `_Writer` looks closer."""
    value, columns = node.meta.get("val"), product.meta["val"].shape[-1]
    if inside.isdisjoint(node.all_input_nodes) or not isinstance(value, torch.Tensor):
        return False
    if not value.dim() or value.shape[-1] != columns:
        return False
    is_bits = node.target is aten.view.dtype or value.dtype == torch.int32  # of a rounded number
    return node.target in RESHAPES or is_bits or _has_rule(node)


def _is_end(node: fx.Node, inside: set[fx.Node], product: fx.Node) -> bool:
    """Whether others read this node alone, and it is as narrow as the product."""
    is_narrow = node.meta["val"].dtype == product.meta["val"].dtype
    others = inside - {node}
    are_alone = all(user in inside for one in others for user in one.users)
    return is_narrow and are_alone and has_one_dynamic_size(node)


def _has_rule(node: fx.Node) -> bool:
    is_known = node.target in fusion_rules.RULES and node.target not in fusion_rules.OF_ROWS
    return is_known and fusion_rules.holds(node)


class _Writer:
    """Writes the formula of an epilogue."""

    def __init__(self, product: fx.Node, inside: Container[fx.Node]) -> None:
        self.inside = inside
        self.graph = fx.Graph()
        self.rows: dict[fx.Node, bool] = {}  # whether operands are rows
        self.copies = {product: self._placeholder(product)}

    def epilogue(self, end: fx.Node) -> Epilogue | None:
        """The epilogue with this end; None if a kernel cannot compute it."""
        result = self._write(end)
        if result is None or result.op == "placeholder" or len(self.rows) > _MOST_OPERANDS:
            return None
        self.graph.output(result)
        values = [node.meta["val"] for node in self.graph.nodes if node.op != "output"]
        text = f"{self.graph} {[(value.dtype, value.dim()) for value in values]}"
        return Epilogue(end, Formula(text, (*self.rows.values(),), self.graph), (*self.rows,))

    def _write(self, node: fx.Node) -> fx.Node | None:
        """Copy a node and what it reads."""
        if node not in self.copies:
            copy = self._copy(node)
            if copy is None:
                return None
            self.copies[node] = copy
        return self.copies[node]

    def _copy(self, node: fx.Node) -> fx.Node | None:
        wide = widened_from(node)
        if wide is not None and wide in self.inside:
            operand = self._write(wide)
            return operand and self._call(node, aten._to_copy.default, operand)
        if node.target in RESHAPES:
            return self._write(node.all_input_nodes[0])
        if not _has_rule(node):
            return None
        shape = node.meta["val"].shape
        operands = {one: self._operand(one, shape) for one in node.all_input_nodes}
        if None in operands.values():
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), operands.__getitem__)
        return self._call(node, node.target, *args, **kwargs)

    def _operand(self, node: fx.Node, shape: Sequence[Any]) -> fx.Node | None:
        """An operand of an op whose result has a shape."""
        value, number = node.meta["val"], fill_of(node)
        if node not in self.inside and number is not None:
            return self._call(node, aten.scalar_tensor.default, number)
        is_whole = have_equal_sizes(value.shape, shape)
        if node in self.inside:
            return self._write(node) if is_whole else None
        is_row = value.dim() > 0 and have_equal_sizes(value.shape, _row_of(value, shape))
        if not is_whole and not is_row:
            return None
        if node not in self.copies:
            self.rows[node] = not is_whole
            self.copies[node] = self._placeholder(node)
        return self.copies[node]

    def _placeholder(self, node: fx.Node) -> fx.Node:
        return _as(self.graph.placeholder(f"x{len(self.graph.nodes)}"), node)

    def _call(self, like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return _as(self.graph.call_function(target, args, kwargs), like)


def _row_of(value: torch.Tensor, shape: Sequence[Any]) -> list[Any]:
    """The shape of a row that is broadcast, of the rank of a value."""
    return [*[1] * (value.dim() - 1), *shape[-1:]]


def _as(copy: fx.Node, node: fx.Node) -> fx.Node:
    """A node with a value of the dtype and the rank of another."""
    value = node.meta["val"]
    copy.meta["val"] = torch.empty([1] * value.dim(), dtype=value.dtype, device="meta")
    return copy
