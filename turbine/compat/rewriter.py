"""The pass interface of iree-turbine: a pass holds a root op, and `run()` changes it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turbine.compat.builder import Builder as Builder
from turbine.compat.merger import Merger as Merger
from turbine.compat.merger import module_of
from turbine.mlir import context as mlir_context
from turbine.mlir import rewrites
from turbine.mlir.ir import Module, Operation, Value
from turbine.mlir.matchers import ConstantIntMatcher as ConstantIntMatcher
from turbine.mlir.matchers import FuncOpMatcher as FuncOpMatcher
from turbine.mlir.matchers import GlobalLoadMatcher as GlobalLoadMatcher
from turbine.mlir.matchers import GlobalOpMatcher as GlobalOpMatcher
from turbine.mlir.matchers import GlobalsDict, globals_of
from turbine.mlir.matchers import NamedOpMatcher as NamedOpMatcher
from turbine.mlir.matchers import OpMatcher as OpMatcher
from turbine.mlir.matchers import OpMatchResult as OpMatchResult
from turbine.mlir.matchers import Transpose2DMatcher as Transpose2DMatcher
from turbine.mlir.matchers import match_children as match_children


class Pass:
    """The base class of passes that hold the module they change; a subclass defines `run`."""

    def __init__(self, root_op: Module | Operation) -> None:
        self.root_op: Operation = root_op.operation
        self.module = module_of(root_op)

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
        """Move the contents of another module into this one."""
        merger = Merger(source_module, self.root_op)
        merger.merge()
        return merger

    def inline(self) -> None:
        """Inline calls."""
        rewrites.run_pipeline(self.module, "inline")

    def cleanup(self) -> None:
        """Canonicalize, and erase private symbols without uses."""
        rewrites.run_pipeline(self.module, "canonicalize,symbol-dce")

    def replace_op(self, old_op: Operation, *new_results: Value) -> None:
        """Replace the results of an op by values, and erase the op."""
        rewrites.replace(old_op.operation, new_results)
        self.erase_unused_op(old_op)

    def erase_unused_op(self, op: Operation) -> None:
        """Erase an op without uses, and the ops that only it used."""
        rewrites.erase_unused(self.module, [op.operation])


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
