"""Write turbine/kernel/lang/__init__.pyi, which editors and type checkers read.

An op of the kernel language is an object at run time, so its parameters and its docstring are found
by `help()` alone. The stub declares each as a function: `python docs/kernel_stub.py`.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import turbine.kernel.lang as tkl
from turbine.dtypes import Dtype
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.types import UnsupportedType

SOURCE = Path(tkl.__file__)
STUB = SOURCE.with_suffix(".pyi")
HEAD = '''"""Made by docs/kernel_stub.py from __init__.py and the ops it names."""

import builtins
from collections.abc import Sequence
from typing import Any

'''
# What the signatures are made of.
TYPES = [
    "from turbine.dtypes import Dtype",
    "from turbine.kernel.lang.reductions import Axes",
    "from turbine.kernel.trace.op import Operand, Shape, Size",
    "from turbine.kernel.trace.tracer import Buffer, Tile",
    "from turbine.kernel.trace.types import ElementType, UnsupportedType",
]
DECLARED = (Op, Dtype, UnsupportedType)


def page() -> str:
    """The stub's text."""
    tree = ast.parse(SOURCE.read_text())
    imports = [*TYPES, *(line for node in tree.body for line in _imports(node))]
    declared = [_declaration(name) for name in _names() if isinstance(vars(tkl)[name], DECLARED)]
    others = "Index = IndexExpr\nVector = Tile\n"
    return _formatted("\n".join([HEAD, *sorted(imports, key=_import_order), *declared, others]))


def _import_order(line: str) -> tuple[str, bool, str]:
    """As ruff sorts them."""
    return line.split()[1], " as " in line, line


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", STUB.name, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _names() -> list[str]:
    return [name for name in vars(tkl) if not name.startswith("_")]


def _imports(node: ast.stmt) -> Iterator[str]:
    """The imports of all but ops and element types: it is typed where it is defined."""
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            name = alias.asname or alias.name
            if not name.startswith("_") and not isinstance(vars(tkl)[name], DECLARED):
                yield f"from {node.module} import {alias.name} as {name}"


def _declaration(name: str) -> str:
    value = vars(tkl)[name]
    if not isinstance(value, Op):
        return f"{name}: {type(value).__name__}"
    takes = inspect.signature(value)
    given = [_parameter(one) for one in takes.parameters.values()]
    for index, one in enumerate(takes.parameters.values()):
        if one.kind is one.KEYWORD_ONLY:
            given.insert(index, "*")
            break
    doc = textwrap.indent(f'"""{inspect.getdoc(value.meaning)}"""', "    ")
    header = f"def {name}({', '.join(given)}) -> {takes.return_annotation}:"
    # `bool` is an element type here.
    return re.sub(r"\bbool\b", "builtins.bool", header) + f"\n{doc}\n"


def _parameter(one: inspect.Parameter) -> str:
    star = "*" if one.kind is one.VAR_POSITIONAL else ""
    default = "" if one.default is one.empty else f" = {_default(one.default)}"
    return f"{star}{one.name}: {one.annotation}{default}"


def _default(value: object) -> str:
    return "..." if isinstance(value, Dtype) else repr(value)


if __name__ == "__main__":
    STUB.write_text(page())
