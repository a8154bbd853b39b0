"""Passes under the names and signatures that users of iree-turbine know: a root op in, run()."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turbine.mlir import context as mlir_context
from turbine.mlir import rewriting
from turbine.mlir.ir import Module, Operation, SymbolTable, Value
from turbine.mlir.matching import (
    FuncOpMatcher,
    GlobalsDict,
    OpMatchResult,
    globals_of,
    match_children,
)
from turbine.passes import merge
from turbine.passes.add_metadata import AddMetadata
from turbine.passes.expand_custom_ops import Emit, ExpandCustomOps
from turbine.passes.group_quantize import GroupQuantize
from turbine.passes.rename_parameters import Callback, Name, RenameParameters


class Pass:
    """A base for passes that hold the module they change; a subclass has `run`."""

    def __init__(self, root_op: Module | Operation) -> None:
        self.root_op: Operation = root_op.operation
        self.module = _module(root_op)

    def run(self) -> Any:
        """Change the module."""
        raise NotImplementedError

    @property
    def funcs(self) -> list[OpMatchResult]:
        """The functions of the module."""
        return match_children(self.root_op, FuncOpMatcher())

    @property
    def globals(self) -> GlobalsDict:
        """The globals of the module by their names."""
        return globals_of(self.root_op)

    def merge_module(self, source_module: Module | Operation) -> Merger:
        """Move what is in another module into this one."""
        merger = Merger(source_module, self.root_op)
        merger.merge()
        return merger

    def inline(self) -> None:
        """Put functions in the place of their calls."""
        rewriting.run_pipeline(self.module, "inline")

    def cleanup(self) -> None:
        """Simplify, and drop private symbols that nobody uses."""
        rewriting.run_pipeline(self.module, "canonicalize,symbol-dce")

    def replace_op(self, old_op: Operation, *new_results: Value) -> None:
        """Let values stand in for an op's results, and erase the op."""
        rewriting.replace(old_op.operation, new_results)
        self.erase_unused_op(old_op)

    def erase_unused_op(self, op: Operation) -> None:
        """Erase an op that nobody reads, and what only it has read."""
        rewriting.erase_unused(self.module, [op.operation])


class Merger(merge.Merger):
    """`turbine.passes.Merger` that takes modules or their ops."""

    def __init__(
        self,
        source_module: Module | Operation,
        target_module: Module | Operation,
        *,
        user_rename_map: Mapping[str, str] | None = None,
        target_symbol_table: SymbolTable | None = None,
    ) -> None:
        super().__init__(
            _module(source_module),
            _module(target_module),
            user_rename_map=user_rename_map,
            target_symbol_table=target_symbol_table,
        )


class RenameParametersPass(Pass):
    """`turbine.passes.RenameParameters`, where names that are not there are no error."""

    def __init__(
        self,
        root_op: Module | Operation,
        *,
        rename_map: Mapping[Name, Name] | None = None,
        rename_callback: Callback | None = None,
    ) -> None:
        super().__init__(root_op)
        self.renames = RenameParameters(rename_map or {}, rename_callback, missing_ok=True)

    def run(self) -> None:
        """Rename the parameters."""
        self.renames.run(self.module)


class AddMetadataPass(Pass):
    """`turbine.passes.AddMetadata`, which gives the module back."""

    def __init__(
        self, mlir_module: Module, inp_metadata: Mapping[str, object], func_name: str
    ) -> None:
        super().__init__(mlir_module)
        self.mlir_module = mlir_module
        self.metadata = AddMetadata(func_name, inp_metadata)

    def run(self) -> Module:
        """Add the metadata."""
        self.metadata.run(self.module)
        return self.mlir_module


class ExpandCustomOpsPass(Pass):
    """`turbine.passes.ExpandCustomOps` with a table of expansions."""

    def __init__(self, root_op: Module | Operation, reg: Mapping[str, Emit]) -> None:
        super().__init__(root_op)
        self.reg = reg

    def run(self) -> None:
        """Expand the ops."""
        ExpandCustomOps(self.reg).run(self.module)


class MMGroupQuantRewriterPass(Pass):
    """`turbine.passes.GroupQuantize` to four bits."""

    def __init__(self, root_op: Module | Operation, *, group_size: int = 128) -> None:
        super().__init__(root_op)
        self.group_size = group_size

    def run(self) -> None:
        """Quantize the layers."""
        GroupQuantize(group_size=self.group_size).run(self.module)


def pass_main(pass_class: type[Pass], *, argv: Sequence[str] | None = None) -> None:
    """Read IR from a file, run a pass and print the IR, or write it with -o."""
    parser = ArgumentParser(description=pass_class.__doc__)
    parser.add_argument("input", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(argv)
    module = mlir_context.read(options.input)
    pass_class(module).run()
    mlir_context.verify(module)
    if options.output is None:
        sys.stdout.write(mlir_context.to_text(module))
    else:
        mlir_context.save(module, options.output)


def _module(root: Module | Operation) -> Module:
    """A module's op has what passes ask of a module: body, context and operation."""
    return root if isinstance(root, Module) else root.operation.opview
