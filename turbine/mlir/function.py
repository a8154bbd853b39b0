"""Build functions over torch types, and list the torch ops of a module."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from iree.compiler.dialects import func
from iree.compiler.ir import (
    Block,
    DictAttr,
    FlatSymbolRefAttr,
    FunctionType,
    InsertionPoint,
    Location,
    Module,
    Operation,
    StringAttr,
    Type,
    TypeAttr,
    UnitAttr,
    Value,
)

from turbine import errors
from turbine.mlir import symbols
from turbine.mlir.matchers import walk


def define(
    module: Module,
    name: str,
    inputs: Sequence[Type],
    results: Sequence[Type],
    location: Location,
    *,
    visibility: str = "public",
) -> Block:
    """Add a function; return its entry block."""
    signature = FunctionType.get(list(inputs), list(results))
    with location:
        operation = func.FuncOp(name, signature, ip=InsertionPoint(module.body))
        if visibility != "public":
            symbols.set_visibility(operation.operation, visibility)
        # Graphs from torch.export never broadcast a symbolic size against 1.
        operation.attributes["torch.assume_strict_symbolic_shapes"] = UnitAttr.get()
        return Block.create_at_start(operation.body, list(inputs))


def return_values(values: Sequence[Value], location: Location) -> None:
    """End the function at the current insertion point."""
    func.ReturnOp(list(values), loc=location)


def set_results(block: Block, results: Sequence[Type]) -> None:
    """Set the result types of the function around an entry block."""
    operation = block.owner
    inputs = [argument.type for argument in block.arguments]
    signature = FunctionType.get(inputs, list(results))
    operation.attributes["function_type"] = TypeAttr.get(signature)


def call(
    name: str, arguments: Sequence[Value], results: Sequence[Type], location: Location
) -> list[Value]:
    """Call a function of the module at the current insertion point."""
    callee = FlatSymbolRefAttr.get(name)
    return list(func.CallOp(list(results), callee, list(arguments), loc=location).results)


def invoke(callee: Operation, arguments: Sequence[Value], location: Location) -> list[Value]:
    """Call a function, be it a func.func or a util.func, at the current insertion point."""
    symbol = FlatSymbolRefAttr.get(symbols.symbol_name(callee))
    return list(
        Operation.create(
            _CALLS[callee.name],
            results=signature(callee)[1],
            operands=list(arguments),
            attributes={"callee": symbol},
            loc=location,
        ).results
    )


_CALLS = {"func.func": "func.call", "util.func": "util.call"}


def set_module_name(module: Module, name: str) -> None:
    """Name the module; IREE's tools show functions as <module>.<function>."""
    module.operation.attributes["sym_name"] = StringAttr.get(name)


def rename_only(module: Module, name: str) -> None:
    """Rename the only function of an imported module, without what its importer noted on it."""
    (op,) = module.body.operations
    op.attributes["sym_name"] = StringAttr.get(name)
    for note in [key for key in _attribute_names(op) if key.startswith("torch.onnx_meta.")]:
        del op.attributes[note]


def _attribute_names(op: Operation) -> list[str]:
    return [op.attributes[at].name for at in range(len(op.attributes))]


def unknown_torch_ops(module: Module) -> list[tuple[str, str]]:
    """(op name, source line) of each op the torch dialect has no definition for."""
    return [
        (operator_name(op), source_line(op.location) or "unknown place")
        for op in walk(module.operation)
        if op.name == "torch.operator"
    ]


def operator_name(op: Operation) -> str:
    """The name of a torch op that the dialect has no definition for."""
    return str(StringAttr(op.attributes["name"]).value)


def signature(function: Operation) -> tuple[list[Type], list[Type]]:
    """The argument and result types of a function."""
    kind = FunctionType(TypeAttr(function.attributes["function_type"]).value)
    return list(kind.inputs), list(kind.results)


def source_line(location: Location) -> str | None:
    """The line of the user's code that a location names."""
    frames = re.findall(r'"([^"]+)":(\d+):\d+', str(location))
    return errors.user_place([f"{file}:{line}" for file, line in frames])


def add_reflection(function: Operation, texts: Mapping[str, str]) -> None:
    """Add entries to a function's reflection dictionary, which is readable at run time."""
    with function.context:
        has = REFLECTION in function.attributes
        old = DictAttr(function.attributes[REFLECTION]) if has else DictAttr.get({})
        kept = {name: old[name] for name in _names(old)}
        new = {name: StringAttr.get(text) for name, text in texts.items()}
        function.attributes[REFLECTION] = DictAttr.get({**kept, **new})


REFLECTION = "iree.reflection"


def _names(attribute: DictAttr) -> list[str]:
    return [attribute[index].name for index in range(len(attribute))]
