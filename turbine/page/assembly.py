"""Assembly of a program in, the instructions of each function out."""

from __future__ import annotations

import re

_LABEL = re.compile(r'^"?([^\s".][^\s"]*)"?:')
_END = ".Lfunc_end"
_SKIPPED = re.compile(r"\s*(\.(?!byte|long|quad)|#|$)")
_MOST_LINES = 3000


def functions_of(assembly: str) -> dict[str, str]:
    """The code of each function, without directives."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in assembly.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            current = found.setdefault(label[1], [])
        elif line.startswith(_END):
            current = None
        elif current is not None and _is_shown(line):
            current.append(line.expandtabs(8))
    return {name: _cut(lines) for name, lines in found.items() if lines}


def _is_shown(line: str) -> bool:
    if line.startswith(".LBB"):
        return True
    return not _SKIPPED.match(line)


def _cut(lines: list[str]) -> str:
    rest = len(lines) - _MOST_LINES
    more = [f"... and {rest} more lines"] if rest > 0 else []
    return "\n".join([*lines[:_MOST_LINES], *more])
