"""Rename external weights, by a map or a callback."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from turbine import errors
from turbine.mlir import parameters
from turbine.mlir.ir import Module
from turbine.mlir.matchers import GlobalOpMatcher, match_children
from turbine.mlir.parameters import SEPARATOR, Parameter
from turbine.passes.base import Pass, Values

# "key" or "scope::key"; a pair (scope, key) if the key contains "::".
Name = str | tuple[str | None, str]
# Called for names that are not in the map; None keeps a name.
Callback = Callable[[str | None, str], Name | None]


@dataclass(frozen=True)
class RenameParameters(Pass):
    """Rename parameters by a map from old to new names, or by a callback (scope, key).

    A new name without a scope keeps the old one. Names in the map that no parameter has are an
    error unless `missing_ok`, and so are two parameters that would have one name.

    >>> from turbine.mlir import context
    >>> module = context.parse(
    ...     'util.global private @w = #flow.parameter.named<"model"::"a"> : tensor<4xf32>')
    >>> RenameParameters({"a": "layer::b"}).run(module)
    >>> str(module).split(" : ")[0].split(" = ")[1]
    '#flow.parameter.named<"layer"::"b">'
    """

    name = "rename-parameters"
    renames: Mapping[Name, Name] = field(default_factory=dict)
    callback: Callback | None = None
    missing_ok: bool = False

    @classmethod
    def parse(cls, text: str) -> RenameParameters:
        """A JSON object of old to new names: '{"a": "b"}'."""
        return cls(json_object(text, cls.name))

    def run(self, module: Module) -> None:
        """Rename the parameters of globals."""
        plan = self._plan(module)
        for match in match_children(module, GlobalOpMatcher()):
            if match.initial_value is None:
                continue
            old = parameters.of(match.initial_value)
            if old is not None and plan[old] != old:
                parameters.rename(match.op, plan[old])

    def follow(self, module: Module, values: Values) -> Values:
        """The same weights under their new names."""
        plan = self._plan(module)
        return {plan.get(old, old): value for old, value in values.items()}

    def _plan(self, module: Module) -> dict[Parameter, Parameter]:
        """The new name of every parameter; checked before anything changes."""
        present = list(dict.fromkeys(parameters.by_global(module).values()))
        self._check_present(present)
        plan = {old: self._rename(old) for old in present}
        _check_distinct(plan)
        for old, new in plan.items():
            if new != old:
                parameters.check(new)
        return plan

    def _rename(self, old: Parameter) -> Parameter:
        new = next((self.renames[name] for name in _spellings(old) if name in self.renames), None)
        if new is None and self.callback is not None:
            new = self.callback(old.scope, old.key)
        return old if new is None else _parameter(new, old.scope)

    def _check_present(self, present: list[Parameter]) -> None:
        known = {name for parameter in present for name in _spellings(parameter)}
        missing = [_text(name) for name in self.renames if name not in known]
        if not missing or self.missing_ok:
            return
        if not present:
            raise errors.TransformError(
                f"no parameter {missing[0]!r}: the module has none at all",
                hint='export with weights="external", so that weights are parameters',
            )
        valid = [parameter.text for parameter in present]
        raise errors.TransformError(
            errors.unknown("parameter", missing[0], valid),
            hint="RenameParameters(..., missing_ok=True) passes over names that are not there",
        )


def _check_distinct(plan: Mapping[Parameter, Parameter]) -> None:
    taken: dict[Parameter, Parameter] = {}
    for old, new in plan.items():
        if new in taken:
            raise errors.TransformError(
                f"two parameters would be named {new.text!r}: {taken[new].text!r} and {old.text!r}",
                hint="each parameter needs a name of its own",
            )
        taken[new] = old


def _spellings(parameter: Parameter) -> tuple[Name, ...]:
    """The keys of a map for a parameter, most specific first."""
    return (parameter.scope, parameter.key), parameter.text, parameter.key


def _parameter(name: Name, scope: str | None) -> Parameter:
    if isinstance(name, tuple):
        return Parameter(*name)
    before, separator, after = name.partition(SEPARATOR)
    return Parameter(before, after) if separator else Parameter(scope, name)


def _text(name: Name) -> str:
    return name if isinstance(name, str) else Parameter(*name).text


def json_object(text: str, option: str) -> dict[Name, Name]:
    """Parse a JSON object of strings; raises for duplicate names."""
    try:
        found = json.loads(text, object_pairs_hook=_reject_duplicates)
    except json.JSONDecodeError as error:
        raise errors.TransformError(
            f"--{option} is not JSON: {error}", hint="""write '{"old": "new"}'"""
        ) from error
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise errors.TransformError(
            f"--{option} is not an object of strings: {text}", hint="""write '{"old": "new"}'"""
        )
    return {**found}


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise errors.TransformError(
            f"{repeated!r} is given twice", hint="leave one of its new names out"
        )
    return dict(pairs)
