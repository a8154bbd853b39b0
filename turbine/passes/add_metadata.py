"""Add metadata to a function: names and texts in, an `iree.reflection` dictionary out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from turbine import errors
from turbine.mlir import function
from turbine.mlir.ir import Module
from turbine.mlir.matchers import FuncOpMatcher, match_children
from turbine.mlir.symbols import symbol_name
from turbine.passes.base import Pass


@dataclass(frozen=True)
class AddMetadata(Pass):
    """Add metadata to a function, which is its reflection at run time.

    Values are converted to strings. Existing entries with other names are kept.

    >>> from turbine.mlir import context
    >>> module = context.parse("func.func @main() { return }")
    >>> AddMetadata("main", {"batch": 8}).run(module)
    >>> 'iree.reflection = {batch = "8"}' in str(module)
    True
    """

    name = "add-metadata"
    function: str
    metadata: Mapping[str, object]

    @classmethod
    def parse(cls, text: str) -> AddMetadata:
        """A JSON object with one function's name: '{"main": {"author": "me"}}'."""
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise _bad(f"--{cls.name} is not JSON: {error}") from error
        if not isinstance(found, dict) or len(found) != 1:
            raise _bad(f"--{cls.name} does not name one function: {text}")
        ((name, metadata),) = found.items()
        if not isinstance(metadata, dict):
            raise _bad(f"--{cls.name} has no object of metadata for {name!r}: {text}")
        return cls(name, metadata)

    def run(self, module: Module) -> None:
        """Set the dictionary on the function."""
        functions = {symbol_name(m.op): m.op for m in match_children(module, FuncOpMatcher())}
        if self.function not in functions:
            raise errors.TransformError(errors.unknown("function", self.function, functions))
        texts = {name: str(value) for name, value in self.metadata.items()}
        function.add_reflection(functions[self.function], texts)


def _bad(fact: str) -> errors.TransformError:
    return errors.TransformError(fact, hint="""write '{"main": {"name": "text"}}'""")
