"""Print IR for readers: each line of text, and what of the user's program it comes from.

What it comes from is a list of origins: "%name" for a node of a graph, "file:line" otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from iree.compiler.ir import Module

_PLACE = re.compile(r'"([^"]+)":(\d+):\d+')
_ALIAS = re.compile(r"^#(loc\d*) = loc\((.*)\)$")
# Locations nest two deep: loc(callsite("a":1:2 at "b":3:4)), loc("name"("a":1:2)).
_LOCATION = re.compile(r' ?loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\)')
_REFERENCE = re.compile(r"#(loc\d*)")
_LONGEST = 20  # elements of a constant
NODE = "%"  # before the name of a node


@dataclass(frozen=True)
class LocatedLine:
    """A line of IR."""

    text: str
    origins: tuple[str, ...] = ()


def origins(location: str) -> list[str]:
    """The origins in the text of a location, innermost first; IR parsed from text has none."""
    found = [
        place if place.startswith(NODE) else f"{place}:{line}"
        for place, line in _PLACE.findall(location)
        if place != "-"
    ]
    return list(dict.fromkeys(found))


def located_lines(module: Module) -> list[LocatedLine]:
    """The lines of a module, with long constants elided."""
    text = module.operation.get_asm(
        enable_debug_info=True, large_elements_limit=_LONGEST, large_resource_limit=_LONGEST
    )
    lines = text.splitlines()
    aliases = _resolve((match[1], match[2]) for line in lines if (match := _ALIAS.match(line)))
    return [
        LocatedLine(_LOCATION.sub("", line), _origins_of(line, aliases))
        for line in lines
        if not _ALIAS.match(line)
    ]


def _resolve(aliases: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The origins of each alias; one may refer to others, whatever their order."""
    texts = dict(aliases)

    def expand(name: str) -> str:
        return _REFERENCE.sub(lambda match: expand(match[1]), texts.get(name, ""))

    return {name: origins(expand(name)) for name in texts}


def _origins_of(line: str, aliases: dict[str, list[str]]) -> tuple[str, ...]:
    found: list[str] = []
    for location in _LOCATION.findall(line):
        found += origins(location)
        found += [one for name in _REFERENCE.findall(location) for one in aliases.get(name, ())]
    return tuple(dict.fromkeys(found))
