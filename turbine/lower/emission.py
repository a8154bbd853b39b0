"""Ops of ours that the torch dialect lacks: a table from an op's name to the rule that emits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from turbine.mlir import grouped_product
from turbine.mlir.grouped_product import Sizes
from turbine.mlir.ir import Location, Module, Value

# The node, the values of its tensor arguments, and where in the user's code it is from; builtin
# tensors in and out.
Rule = Callable[[Module, fx.Node, Sequence[Value], Location], Value]


def emit_grouped_product(
    module: Module, node: fx.Node, operands: Sequence[Value], location: Location
) -> Value:
    """A call to a function for these sizes."""
    arguments: Any = node.args
    x, values, _, factor, columns, bits = arguments
    (rows, _), (outputs, groups, group_bytes) = x.meta["val"].shape, values.meta["val"].shape
    rows = rows if isinstance(rows, int) else None
    sizes = Sizes(rows, columns, outputs, groups, group_bytes * 8 // bits, bits)
    return grouped_product.call(module, sizes, operands, factor, location)


RULES: dict[str, Rule] = {"turbine::grouped_product": emit_grouped_product}
