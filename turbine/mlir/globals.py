"""Build `util.global` ops: named tensors that live as long as a loaded program."""

from __future__ import annotations

from iree.compiler.ir import (
    Attribute,
    DenseElementsAttr,
    DenseResourceElementsAttr,
    FlatSymbolRefAttr,
    InsertionPoint,
    Location,
    Module,
    Operation,
    RankedTensorType,
    StringAttr,
    Type,
    TypeAttr,
    UnitAttr,
    Value,
)
from numpy import ndarray

from turbine.dtypes import Dtype


def tensor_type(shape: tuple[int, ...], dtype: Dtype) -> Type:
    """The builtin tensor type; unsigned elements are signless here, as IREE wants them."""
    return RankedTensorType.get(list(shape), Type.parse(dtype.mlir))


def parameter(scope: str, key: str, of: Type) -> Attribute:
    """A value found at load time under `key` in a parameter archive."""
    return Attribute.parse(f"#flow.parameter.named<{_quote(scope)}::{_quote(key)}> : {of}")


def dense(name: str, data: ndarray, of: Type) -> Attribute:
    """A value held in the IR itself. `data` is the elements' bytes, flat."""
    shaped = RankedTensorType(of)
    if data.size == 0 or shaped.rank == 0 or data.size * data.itemsize <= 64:
        # Small values print readably and fold; bytes of bool are unpacked by the attribute.
        return DenseElementsAttr.get(data, signless=True, type=of)
    return DenseResourceElementsAttr.get_from_buffer(data, name, of)


def define(
    module: Module, name: str, of: Type, initial: Attribute, *, mutable: bool, location: Location
) -> None:
    """Add a private global at the top of the module."""
    attributes: dict[str, Attribute] = {
        "sym_name": StringAttr.get(name),
        "sym_visibility": StringAttr.get("private"),
        "type": TypeAttr.get(of),
        "initial_value": initial,
    }
    if mutable:
        attributes["is_mutable"] = UnitAttr.get()
    with InsertionPoint.at_block_begin(module.body):
        Operation.create("util.global", attributes=attributes, loc=location)


def load(name: str, of: Type, location: Location) -> Value:
    """Read a global at the current insertion point."""
    attributes = {"global": FlatSymbolRefAttr.get(name)}
    return Operation.create(
        "util.global.load", results=[of], attributes=attributes, loc=location
    ).result


def store(name: str, value: Value, location: Location) -> None:
    """Write a global at the current insertion point."""
    attributes = {"global": FlatSymbolRefAttr.get(name)}
    Operation.create("util.global.store", operands=[value], attributes=attributes, loc=location)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
