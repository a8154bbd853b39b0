"""Symbols of ops: read them, make them private, and rename them with their references."""

from __future__ import annotations

from collections.abc import Mapping

from iree.compiler.ir import Module, Operation, StringAttr, SymbolTable

NAME = "sym_name"
VISIBILITY = "sym_visibility"


def is_symbol(op: Operation) -> bool:
    """Whether an op has a name."""
    return NAME in op.attributes


def symbol_name(op: Operation) -> str:
    """The name of an op that has one."""
    return str(StringAttr(op.attributes[NAME]).value)


def is_private(op: Operation) -> bool:
    """Whether only the module itself can refer to an op."""
    return VISIBILITY in op.attributes and StringAttr(op.attributes[VISIBILITY]).value == "private"


def set_visibility(op: Operation, visibility: str) -> None:
    """Make an op "private" or "public"."""
    op.attributes[VISIBILITY] = StringAttr.get(visibility, op.context)


def rename(module: Module, names: Mapping[str, str]) -> None:
    """Rename symbols of a module and their references at once: names may be swapped."""
    named = {symbol_name(op): op for op in _top(module) if is_symbol(op)}
    changed = {old: new for old, new in names.items() if old != new}
    between = {old: f"turbine.renaming.{number}" for number, old in enumerate(changed)}
    for old, passing in between.items():
        SymbolTable.replace_all_symbol_uses(old, passing, module.operation)
    for old, passing in between.items():
        SymbolTable.replace_all_symbol_uses(passing, changed[old], module.operation)
    for old, new in changed.items():
        named[old].attributes[NAME] = StringAttr.get(new, module.context)


def _top(module: Module) -> list[Operation]:
    return [op.operation for op in module.body.operations]
