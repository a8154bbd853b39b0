"""Emissions of ops that the torch dialect lacks: the arguments of an emission, and ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from turbine.capture.declared_ops import EMITTED, KEEP_OPERANDS
from turbine.mlir import grouped_product
from turbine.mlir.grouped_product import Call
from turbine.mlir.ir import Location, Module, Type, Value
from turbine.packed_weights import Grouping
from turbine.target import Target


@dataclass(frozen=True)
class TargetQuery:
    """The target that IR is emitted for, resolved on first use, since most emissions need none."""

    find: Callable[[], Target]

    @cached_property
    def target(self) -> Target:
        """The target, with the features of its CPU."""
        return self.find()

    @property
    def answer(self) -> Target | None:
        """The target, if an emission has used it."""
        return self.target if "target" in vars(self) else None


@dataclass(frozen=True)
class Site:
    """An op to emit at the insertion point, and its arguments in schema order, with defaults.

    Tensors are builtin tensors, dynamic sizes are i64, and other arguments are Python values.
    `examples` are the traced arguments, with fake tensors. `results` are the expected types, None
    for a result that is None.
    """

    module: Module
    arguments: Sequence[Any]
    examples: Sequence[Any]
    results: Sequence[Type | None]
    location: Location
    query: TargetQuery

    @property
    def target(self) -> Target:
        """The target; IR of a site that uses it is emitted again for other targets."""
        return self.query.target


# From a site to the op's results as builtin values: one, or several in order, with lists flattened.
Rule = Callable[[Site], Value | Sequence[Value | None]]


def emit_grouped_product(site: Site) -> Value:
    """Emit a matmul with a packed weight: [rows, columns] in, [rows, outputs] out."""
    rows, _ = _shape(site.examples[0])
    by_vectors = site.target.kind == "cpu"
    return grouped_product.product(_call(site), _grouping(site), rows, by_vectors=by_vectors)


def emit_grouped_rows(site: Site) -> Value:
    """Emit a lookup of rows of a packed weight: indices in, rows out."""
    return grouped_product.rows(_call(site), _grouping(site), _shape(site.examples[0]))


EMITTED["turbine::grouped_product"] = emit_grouped_product
EMITTED["turbine::grouped_rows"] = emit_grouped_rows
KEEP_OPERANDS.update(EMITTED)


def _call(site: Site) -> Call:
    operand, values, scales, factor, _, _ = site.arguments
    return Call(site.module, (operand, values, scales), factor, site.location)


def _grouping(site: Site) -> Grouping:
    _, values, _, _, columns, bits = site.examples
    outputs, _, group_bytes = values.shape
    return Grouping(outputs, columns, bits, group_bytes * 8 // bits)


def _shape(tensor: Any) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in tensor.shape]
