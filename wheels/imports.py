"""The imports of a Python file: its text in, dotted names with their lines out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import resolve_name


@dataclass(frozen=True)
class Import:
    """One name that a file imports."""

    name: str  # dotted, with the imported name at the end: turbine.errors.ShapeMismatch
    line: int
    at_load: bool  # runs when the module is imported: not in a function, not for types only
    for_types: bool = False  # under `if TYPE_CHECKING`


def imports_of(path: str, text: str) -> list[Import]:
    """Every import of the file at a path from the repository root."""
    package = path.rpartition("/")[0].replace("/", ".")
    return list(_below(ast.parse(text, path), package, at_load=True, for_types=False))


def files_of(name: str) -> Iterator[str]:
    """Paths that importing a dotted name could run, below the top package."""
    parts = name.split(".")
    for count in range(2, len(parts) + 1):
        stem = "/".join(parts[:count])
        yield from (f"{stem}.py", f"{stem}/__init__.py")


def _below(node: ast.AST, package: str, at_load: bool, for_types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        yield from (Import(name, node.lineno, at_load, for_types) for name in names)
        return
    if isinstance(node, ast.ImportFrom):
        base = resolve_name("." * node.level + (node.module or ""), package)
        names = [f"{base}.{alias.name}" for alias in node.names]
        yield from (Import(name, node.lineno, at_load, for_types) for name in names)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        at_load = False
    for child in ast.iter_child_nodes(node):
        is_typed = isinstance(node, ast.If) and child in node.body and _asks_for_types(node.test)
        yield from _below(child, package, at_load and not is_typed, for_types or is_typed)


def _asks_for_types(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
