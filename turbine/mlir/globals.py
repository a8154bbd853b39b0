"""Build `util.global` ops: named tensors that live as long as a loaded program."""

from __future__ import annotations

from iree.compiler.ir import (
    Attribute,
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


def parameter(scope: str, key: str, of: Type) -> Attribute:
    """A value found at load time under `key` in a parameter archive."""
    place = f"{_quote(scope)}::{_quote(key)}" if scope else _quote(key)
    return Attribute.parse(f"#flow.parameter.named<{place}> : {of}")


def uninitialized_attribute(of: Type) -> Attribute:
    """The attribute of an uninitialized value."""
    return Attribute.parse(f"#util.uninitialized : {of}")


def is_uninitialized(initial: Attribute) -> bool:
    """Whether a global starts uninitialized."""
    return str(initial).startswith("#util.uninitialized")


def define(
    module: Module,
    name: str,
    initial: Attribute,
    *,
    mutable: bool,
    location: Location,
    affinity: Attribute | None = None,
    noinline: bool = False,
) -> None:
    """Add a private global at the top of the module, on a device if one is given.

    With `noinline`, what reads it does not get its value put in its place.
    """
    with InsertionPoint.at_block_begin(module.body):
        created = _create(name, initial.type, initial, mutable, location)
        if affinity is not None:
            created.attributes["stream.affinity"] = affinity
        if noinline:
            created.attributes["inlining_policy"] = Attribute.parse("#util.inline.never")


def define_empty(module: Module, name: str, of: Type) -> None:
    """Add a private mutable global of dynamic size, which is empty at first."""
    shape = RankedTensorType(of)
    sizes = ", ".join("%none" for axis in range(shape.rank) if shape.is_dynamic_dim(axis))
    _define_computed(
        module,
        name,
        of,
        f"""
        %none = arith.constant 0 : index
        %start = flow.tensor.empty : {of}{{{sizes}}}""",
    )


def define_zeros(module: Module, name: str, of: Type) -> None:
    """Add a private mutable global of floats, which are zero at first and not in the code."""
    element = RankedTensorType(of).element_type
    # The barrier keeps IREE from merging equal values: such globals would share memory.
    _define_computed(
        module,
        name,
        of,
        f"""
        %zero = arith.constant 0.0 : {element}
        %number = util.optimization_barrier %zero : {element}
        %start = flow.tensor.splat %number : {of}""",
    )


def _define_computed(module: Module, name: str, of: Type, start: str) -> None:
    """Add a private mutable global whose first value, %start, is computed."""
    made = Module.parse(
        f"""
        util.global private mutable @{_quote(name)} : {of}
        util.initializer {{{start}
          util.global.store %start, @{_quote(name)} : {of}
          util.return
        }}"""
    )
    with InsertionPoint.at_block_begin(module.body) as top:
        for operation in list(made.body.operations):
            operation.operation.detach_from_parent()
            top.insert(operation)


def define_before(other: Operation, name: str, of: Type, initial: Attribute | None) -> None:
    """Add a private global before another one, with an initial value if there is one."""
    with InsertionPoint(other):
        _create(name, of, initial, False, other.location)


def _create(
    name: str, of: Type, initial: Attribute | None, mutable: bool, location: Location
) -> Operation:
    attributes: dict[str, Attribute] = {
        "sym_name": StringAttr.get(name),
        "sym_visibility": StringAttr.get("private"),
        "type": TypeAttr.get(of),
    }
    if initial is not None:
        attributes["initial_value"] = initial
    if mutable:
        attributes["is_mutable"] = UnitAttr.get()
    return Operation.create("util.global", attributes=attributes, loc=location)


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
