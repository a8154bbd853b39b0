"""Names of values in archives: the initial value of a global in, scope and key out, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from iree.compiler.ir import Attribute, Module, Operation, Type

from turbine import errors
from turbine.mlir.matchers import GlobalOpMatcher, match_children

SEPARATOR = "::"
_PREFIX = re.compile(r"#(flow|stream)\.parameter\.named<")
_NAMED = re.compile(
    r'(?P<kind>#\w+\.parameter\.named)<"(?P<first>[^"]*)"(?:::"(?P<second>[^"]*)")?'
    r"(?P<settings>, \{.*\})?> : .*",
    re.DOTALL,
)
# IREE writes names unescaped, in text and in bytecode, and cannot read these back.
_UNWRITABLE = re.compile(r'["\\\x00-\x1f]')


@dataclass(frozen=True)
class Parameter:
    """A key in the archive of a scope; a scope of None is the archive without a name."""

    scope: str | None
    key: str

    @property
    def text(self) -> str:
        """Scope and key as a user writes them."""
        return self.key if self.scope is None else f"{self.scope}{SEPARATOR}{self.key}"


def of(initial: Attribute) -> Parameter | None:
    """The parameter an initial value names, or None if it is a value of another kind."""
    text = str(initial)
    if _PREFIX.match(text) is None:
        return None
    named = _NAMED.fullmatch(text)
    if named is None:
        raise errors.TransformError(
            f"cannot read the name of the parameter {text}",
            hint="give it a name without quotes where it is exported",
        )
    first, second = named["first"], named["second"]
    return Parameter(None, first) if second is None else Parameter(first, second)


def by_global(module: Module) -> dict[str, Parameter]:
    """The parameter of each global that has one, by the global's name."""
    return {
        match.sym_name: parameter
        for match in match_children(module, GlobalOpMatcher())
        if match.initial_value is not None and (parameter := of(match.initial_value)) is not None
    }


def check(parameter: Parameter) -> None:
    """Raise unless IREE can write the name and read it again."""
    if _UNWRITABLE.search(parameter.text) is not None:
        raise errors.TransformError(
            f"a parameter cannot be named {parameter.text!r}",
            hint="quotes, backslashes and control characters are not kept when IR is written",
        )


def rename(operation: Operation, parameter: Parameter) -> None:
    """Change the parameter of a global."""
    initial = operation.attributes["initial_value"]
    named = _NAMED.fullmatch(str(initial))
    assert named is not None
    settings = named["settings"] or ""
    operation.attributes["initial_value"] = _build(initial, parameter, settings, initial.type)


def retype(initial: Attribute, parameter: Parameter, of: Type) -> Attribute:
    """An initial value of the same kind with another name and type."""
    return _build(initial, parameter, "", of)


def _build(like: Attribute, parameter: Parameter, settings: str, of: Type) -> Attribute:
    check(parameter)
    kind = str(like).partition("<")[0]
    names = [parameter.key] if parameter.scope is None else [parameter.scope, parameter.key]
    quoted = SEPARATOR.join(f'"{name}"' for name in names)
    return Attribute.parse(f"{kind}<{quoted}{settings}> : {of}", like.context)
