"""Ops that the torch dialect lacks: what a rule that emits one is given, and rules of our own."""

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
    """The target that IR is emitted for; found when an emission asks, since most do not."""

    find: Callable[[], Target]

    @cached_property
    def target(self) -> Target:
        """The target, with the features of its CPU."""
        return self.find()

    @property
    def answer(self) -> Target | None:
        """The target, if an emission asked for it."""
        return self.target if "target" in vars(self) else None


@dataclass(frozen=True)
class Site:
    """An op to emit at the insertion point, and its arguments by the schema, defaults filled in.

    Tensors are builtin tensors and sizes known at run time are numbers of 64 bits; all else is as
    Python has it. `examples` are the arguments as they were traced, tensors without data among
    them. `results` are the types to give, None for what is None.
    """

    module: Module
    arguments: Sequence[Any]
    examples: Sequence[Any]
    results: Sequence[Type | None]
    location: Location
    query: TargetQuery

    @property
    def target(self) -> Target:
        """What the code will run on; IR of a site that asks is emitted again for other targets."""
        return self.query.target


# From a site to the op's results, builtin values: one, or several in order, those of lists in line.
Rule = Callable[[Site], Value | Sequence[Value | None]]


def emit_grouped_product(site: Site) -> Value:
    """A product with a packed weight: [rows, columns] in, [rows, outputs] out."""
    rows, _ = _shape(site.examples[0])
    by_vectors = site.target.kind == "cpu"
    return grouped_product.product(_call(site), _grouping(site), rows, by_vectors=by_vectors)


def emit_grouped_rows(site: Site) -> Value:
    """Rows of a packed weight: indices in, rows out."""
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
