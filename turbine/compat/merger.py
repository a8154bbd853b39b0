"""`turbine.passes.Merger` for modules or their ops."""

from __future__ import annotations

from collections.abc import Mapping

from turbine.mlir.ir import Module, Operation, SymbolTable
from turbine.passes import merge


class Merger(merge.Merger):
    """`turbine.passes.Merger` for modules or their ops."""

    def __init__(
        self,
        source_module: Module | Operation,
        target_module: Module | Operation,
        *,
        user_rename_map: Mapping[str, str] | None = None,
        target_symbol_table: SymbolTable | None = None,
    ) -> None:
        super().__init__(
            module_of(source_module),
            module_of(target_module),
            user_rename_map=user_rename_map,
            target_symbol_table=target_symbol_table,
        )


def module_of(root: Module | Operation) -> Module:
    """A module's op has the attributes of a module that passes use: body, context and operation."""
    return root if isinstance(root, Module) else root.operation.opview
