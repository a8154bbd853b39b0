"""Compiler messages as data: what failed, and which line of the user's code it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from turbine import errors

_PLACE = re.compile(r"^(?P<file>\S.*?):(?P<line>\d+):(?P<column>\d+): (?P<text>.*)$")
_NO_PLACE = re.compile(r'^loc\((unknown|".*?")\): ')
_ILLEGAL_OP = re.compile(r"failed to legalize operation '(?P<op>[\w.]+)'")
_OPERATOR = re.compile(r'name = "(?P<name>[\w.]+)"')
ERROR = 2  # severities are those of IREE's C API: note 0, warning 1, error 2, remark 3


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler with the source lines it names, innermost first."""

    severity: int
    message: str
    places: tuple[str, ...]

    @property
    def where(self) -> str | None:
        """The innermost place in the user's own code, else the innermost place."""
        return errors.user_place(self.places)

    @property
    def unsupported_op(self) -> str | None:
        """The op without a lowering, if that is the message."""
        illegal = _ILLEGAL_OP.search(self.message)
        if illegal is None:
            return None
        named = _OPERATOR.search(self.message)
        return named["name"] if named is not None else illegal["op"]


def parse(severity: int, text: str) -> Diagnostic:
    """Split a raw message into its first sentence and the places it mentions."""
    places, sentences = [], []
    for line in text.splitlines():
        found = _PLACE.match(line)
        if found is not None:
            places.append(f"{found['file']}:{found['line']}")
        sentences.append(found["text"] if found is not None else _NO_PLACE.sub("", line))
    first = next((s for s in sentences if s.strip()), "")
    return Diagnostic(severity, first.removeprefix("error: "), tuple(dict.fromkeys(places)))


def first_error(diagnostics: Iterable[Diagnostic]) -> Diagnostic | None:
    """The first error among the messages."""
    return next((d for d in diagnostics if d.severity == ERROR), None)
