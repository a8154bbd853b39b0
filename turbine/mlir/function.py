"""Build functions over torch types, and read which torch ops a module holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from iree.compiler.dialects import func
from iree.compiler.ir import (
    Block,
    FunctionType,
    InsertionPoint,
    Location,
    Module,
    Operation,
    StringAttr,
    Type,
    UnitAttr,
    Value,
)

from turbine import errors


def define(
    module: Module, name: str, inputs: Sequence[Type], results: Sequence[Type], location: Location
) -> Block:
    """Add a public function and give back its entry block."""
    signature = FunctionType.get(list(inputs), list(results))
    with location:
        operation = func.FuncOp(name, signature, ip=InsertionPoint(module.body))
        # Graphs from torch.export never broadcast a symbolic size against 1.
        operation.attributes["torch.assume_strict_symbolic_shapes"] = UnitAttr.get()
        return Block.create_at_start(operation.body, list(inputs))


def return_values(values: Sequence[Value], location: Location) -> None:
    """End the function at the current insertion point."""
    func.ReturnOp(list(values), loc=location)


def set_module_name(module: Module, name: str) -> None:
    """Name the module; IREE's tools show functions as <module>.<function>."""
    module.operation.attributes["sym_name"] = StringAttr.get(name)


def unknown_torch_ops(module: Module) -> list[tuple[str, str]]:
    """(op name, source line) of each op the torch dialect has no definition for."""
    return [
        (StringAttr(op.attributes["name"]).value, source_line(op.location) or "unknown place")
        for op in _walk(module.operation)
        if op.name == "torch.operator"
    ]


def source_line(location: Location) -> str | None:
    """The line of the user's code that a location names."""
    frames = re.findall(r'"([^"]+)":(\d+):\d+', str(location))
    return errors.user_place([f"{file}:{line}" for file, line in frames])


def _walk(operation: Operation) -> Iterator[Operation]:
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from _walk(op.operation)
