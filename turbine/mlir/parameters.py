"""Names of values in archives: the initial value of a global in, scope and key out, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler.ir import Attribute, Module, Operation, StringAttr, Type

from turbine.mlir.matching import GlobalOpMatcher, match_children

SEPARATOR = "::"
_NAMED = re.compile(r"(?P<kind>#(?:flow|stream)\.parameter\.named)<(?P<inside>.*)> : .*", re.DOTALL)


@dataclass(frozen=True)
class Parameter:
    """A key in the archive of a scope; without a scope, in the archive that has no name."""

    scope: str | None
    key: str

    @property
    def text(self) -> str:
        """Scope and key as a user writes them."""
        return self.key if self.scope is None else f"{self.scope}{SEPARATOR}{self.key}"


def of(initial: Attribute) -> Parameter | None:
    """The parameter an initial value names, or None if it is a value of another kind."""
    found = _found(initial)
    return found[0] if found is not None else None


def renamed(initial: Attribute, parameter: Parameter) -> Attribute:
    """The same initial value under another name."""
    found = _found(initial)
    assert found is not None
    return _build(initial, parameter, found[1], initial.type)


def typed(initial: Attribute, parameter: Parameter, of: Type) -> Attribute:
    """An initial value of the same kind under another name, with a type of its own."""
    return _build(initial, parameter, "", of)


def by_global(module: Module) -> dict[str, Parameter]:
    """The parameter of each global that has one, by the global's name."""
    return {
        match.sym_name: parameter
        for match in match_children(module, GlobalOpMatcher())
        if match.initial_value is not None and (parameter := of(match.initial_value)) is not None
    }


def _found(initial: Attribute) -> tuple[Parameter, str] | None:
    """IREE prints names without escapes, so each reading is checked by building it again."""
    matched = _NAMED.fullmatch(str(initial))
    if matched is None:
        return None
    with initial.context:
        readings = _readings(matched["inside"])
        return next((r for r in readings if _build(initial, *r, initial.type) == initial), None)


def _readings(inside: str) -> Iterator[tuple[Parameter, str]]:
    """Every way to take `"scope"::"key", {settings}` apart; the last two pieces are optional."""
    for end in (found.start() for found in re.finditer(r'"(?=, \{|$)', inside)):
        name, settings = inside[1:end], inside[end + 1 :]
        for split in re.finditer('"::"', name):
            yield Parameter(name[: split.start()], name[split.end() :]), settings
        yield Parameter(None, name), settings


def _build(like: Attribute, parameter: Parameter, settings: str, of: Type) -> Attribute:
    kind = str(like).partition("<")[0]
    with like.context:
        names = [parameter.key] if parameter.scope is None else [parameter.scope, parameter.key]
        quoted = SEPARATOR.join(str(StringAttr.get(name)) for name in names)
        return Attribute.parse(f"{kind}<{quoted}{settings}> : {of}")


def rename(operation: Operation, parameter: Parameter) -> None:
    """Make a global that has a parameter take its value from another one."""
    attributes = operation.attributes
    attributes["initial_value"] = renamed(attributes["initial_value"], parameter)
