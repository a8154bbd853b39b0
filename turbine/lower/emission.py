"""Ops of ours that the torch dialect lacks: a table from an op's name to the rule that emits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine.mlir import grouped_product
from turbine.mlir.grouped_product import Call, Packed
from turbine.mlir.ir import Location, Module, Value


@dataclass(frozen=True)
class Site:
    """A node to emit at the insertion point, and the builtin tensors it takes, in order."""

    module: Module
    node: fx.Node
    operands: Sequence[Value]
    location: Location
    target_kind: str


def emit_grouped_product(site: Site) -> Value:
    """A product with a packed weight: [rows, columns] in, [rows, outputs] out."""
    rows, _ = _shape(site.node.args[0])
    by_vectors = site.target_kind == "cpu"
    return grouped_product.product(_call(site), _packed(site.node), rows, by_vectors=by_vectors)


def emit_grouped_rows(site: Site) -> Value:
    """Rows of a packed weight: indices in, rows out."""
    return grouped_product.rows(_call(site), _packed(site.node), _shape(site.node.args[0]))


# From a node to its value, a builtin tensor.
Rule = Callable[[Site], Value]
RULES: dict[str, Rule] = {
    "turbine::grouped_product": emit_grouped_product,
    "turbine::grouped_rows": emit_grouped_rows,
}


def _call(site: Site) -> Call:
    factor: Any = site.node.args[3]
    return Call(site.module, site.operands, factor, site.location)


def _packed(node: fx.Node) -> Packed:
    arguments: Any = node.args
    _, values, _, _, columns, bits = arguments
    outputs, groups, group_bytes = values.meta["val"].shape
    return Packed(outputs, columns, groups, group_bytes * 8 // bits, bits)


def _shape(node: Any) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in node.meta["val"].shape]
