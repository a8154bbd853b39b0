"""The base class of passes: options are fields, and a module is changed in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy
from numpy.typing import NDArray

from turbine.mlir import context as mlir_context
from turbine.mlir import rewrites
from turbine.mlir.ir import Module
from turbine.mlir.parameters import Parameter

# External weights by name, as in an archive.
Values = Mapping[Parameter, NDArray[Any]]


class Pass(ABC):
    """One transform of IR. Subclasses are frozen dataclasses; their fields are their options."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Pass:
        """Parse the text of the command line option: --<name>=<text>."""

    @abstractmethod
    def run(self, module: Module) -> None:
        """Change a module in place; `run_passes` runs it on a copy."""

    def follow(self, module: Module, values: Values) -> Values:
        """The weights of the transformed module, computed from the old ones."""
        return values


def run_passes(module: Module, passes: Sequence[Pass]) -> Module:
    """A copy of the module with the passes run in order; verified before and after each.

    >>> from turbine.mlir import context
    >>> from turbine.passes import AddMetadata, run_passes
    >>> module = context.parse("func.func @main() { return }")
    >>> "iree.reflection" in str(run_passes(module, [AddMetadata("main", {"version": "2"})]))
    True
    """
    return transform(module, {}, passes)[0]


def transform(module: Module, values: Values, passes: Sequence[Pass]) -> tuple[Module, Values]:
    """Run passes on a copy of a module and on its external weights."""
    mlir_context.verify(module)
    copy = rewrites.clone(module)
    for item in passes:
        values = item.follow(copy, values)
        item.run(copy)
        mlir_context.verify(copy)
    return copy, values


def as_bytes(array: NDArray[Any]) -> NDArray[numpy.uint8]:
    """The elements of an array as flat bytes in row-major order."""
    return numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
