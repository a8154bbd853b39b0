"""Parse the schema of an op: text in, arguments and results out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as torch_pytree

from turbine import errors


@dataclass(frozen=True)
class Argument:
    """One argument. A SymInt is dynamic; other numbers are part of the code."""

    name: str
    kind: str  # a row of KINDS, without "?" and "[]"
    is_list: bool
    is_optional: bool
    is_written: bool
    keyword_only: bool
    default: Any


@dataclass(frozen=True)
class Result:
    """One result."""

    kind: str
    is_list: bool
    is_optional: bool

    @property
    def text(self) -> str:
        """The type as in a schema."""
        return f"{self.kind}{'[]' * self.is_list}{'?' * self.is_optional}"

    def holds(self, value: Any) -> bool:
        """Whether a value has this type."""
        if value is None:
            return self.is_optional
        if self.is_list:
            element = Result(self.kind.removesuffix("?"), False, self.kind.endswith("?"))
            return isinstance(value, (list, tuple)) and all(map(element.holds, value))
        return isinstance(value, _CLASSES[self.kind])


@dataclass(frozen=True)
class Schema:
    """An op's name, arguments and results."""

    namespace: str
    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    parsed: Any  # torch's FunctionSchema

    @property
    def qualified(self) -> str:
        """namespace::name"""
        return f"{self.namespace}::{self.name}"

    @property
    def dotted(self) -> str:
        """namespace.name, as in IR."""
        return f"{self.namespace}.{self.name}"

    @property
    def text(self) -> str:
        """The schema without its namespace, as torch.library.define takes it."""
        return str(self.parsed).partition("::")[2]

    def filled(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """The arguments of a call in order, with defaults filled in."""
        named = {**dict(zip([a.name for a in self.arguments], args, strict=False)), **keywords}
        return [named.get(a.name, a.default) for a in self.arguments]

    def split(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split arguments in order into positional and keyword-only ones."""
        pairs = list(zip(self.arguments, args, strict=True))
        by_place = tuple(value for argument, value in pairs if not argument.keyword_only)
        return by_place, {
            argument.name: value for argument, value in pairs if argument.keyword_only
        }

    def call(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a function with arguments in order, some of them keyword-only."""
        by_place, by_name = self.split(args)
        return function(*by_place, **by_name)

    def written_of(self, args: Sequence[Any]) -> list[Any]:
        """The mutated ones of the arguments in order."""
        pairs = zip(self.arguments, args, strict=True)
        return [value for argument, value in pairs if argument.is_written]

    def with_copies(self, args: Sequence[Any]) -> list[Any]:
        """The arguments in order, with copies of mutated tensors."""
        pairs = zip(self.arguments, args, strict=True)
        return [_copy(value) if argument.is_written else value for argument, value in pairs]

    def as_tuple(self, results: Any) -> tuple[Any, ...]:
        """The results of a call as a tuple."""
        if len(self.results) == 1:
            return (results,)
        return () if results is None else tuple(results)

    def check_results(self, results: Any) -> Any:
        """The results of a function; raises if they differ from the schema."""
        if len(self.results) > 1 and not isinstance(results, (tuple, list)):
            results = (results,)
        given = self.as_tuple(results) if self.results else ()
        if len(given) != len(self.results):
            raise errors.CustomOpError(
                f"{self.qualified}: its function returned {len(given)} results, "
                f"its schema has {len(self.results)}",
                hint=f"the schema is {self.text}",
            )
        for place, (value, result) in enumerate(zip(given, self.results, strict=True)):
            if not result.holds(value):
                raise errors.CustomOpError(
                    f"{self.qualified}: result {place} of its function is a "
                    f"{type(value).__name__}, its schema says {result.text}",
                    hint=f"the schema is {self.text}",
                )
        own = [list(v) if r.is_list else v for v, r in zip(given, self.results, strict=True)]
        return own[0] if len(own) == 1 else tuple(own) or None

    def functional(self) -> Schema:
        """The schema of the functional form: new values of mutated arguments follow the results."""
        taken, _, _ = self.text.rpartition(" -> ")
        arguments = re.sub(r"\(\w+!(?: -> [^)]*)?\)", "", taken.partition("(")[2])
        results = [result.text for result in self.results]
        results += [Result(a.kind, a.is_list, a.is_optional).text for a in self.written]
        name = f"{self.qualified}_functional"
        return parse(f"{name}({arguments} -> ({', '.join(results)})")

    @property
    def written(self) -> tuple[Argument, ...]:
        """The mutated arguments."""
        return tuple(a for a in self.arguments if a.is_written)


def _copy(value: Any) -> Any:
    return torch_pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, value)


# Names of torch's types in schemas, without "?" and "[]".
KINDS = ("Tensor", "int", "SymInt", "float", "bool", "str", "ScalarType", "Scalar")
# Python types of results.
_CLASSES: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "int": (int, torch.SymInt),
    "SymInt": (int, torch.SymInt),
    "float": (float, int, torch.SymFloat),
    "bool": (bool, torch.SymBool),
    "Scalar": (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool),
}


def parse(text: str) -> Schema:
    """Parse "namespace::name(Tensor x, float alpha=1.0) -> Tensor"."""
    if not isinstance(text, str):
        raise errors.CustomOpError(
            f"schema must be a str, not a {type(text).__name__}", hint=_EXAMPLE
        )
    namespace, name = _names(text)
    try:
        parsed = torch._C.parse_schema(text)
    except RuntimeError as error:
        raise errors.CustomOpError(
            f"the schema {text!r} does not parse: {_first_fault(error)}", hint=_EXAMPLE
        ) from error
    if parsed.overload_name:
        raise errors.CustomOpError(
            f"{namespace}::{name} has an overload name, {parsed.overload_name!r}",
            hint="declare an op of another name",
        )
    taken, given = _spell(parsed)
    arguments = [_argument(a, text) for a, text in zip(parsed.arguments, taken, strict=True)]
    results = tuple(Result(*_type(text)) for text in given)
    schema = Schema(namespace, name, tuple(arguments), results, parsed)
    _check(schema)
    return schema


_EXAMPLE = 'write it as "namespace::name(Tensor x, float alpha=1.0) -> Tensor"'


def _names(text: str) -> tuple[str, str]:
    found = re.match(r"\s*(\w+)::(\w+)(\.\w+)?\s*\(", text)
    if found is None:
        raise errors.CustomOpError(
            f"the schema {text!r} does not begin with a name in a namespace", hint=_EXAMPLE
        )
    return found[1], found[2]


def _first_fault(error: RuntimeError) -> str:
    """The first line of the parser's message."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return next(line.removesuffix(":").strip() for line in lines if line)


def _argument(argument: Any, spelled: str) -> Argument:
    alias = argument.alias_info
    is_written = alias is not None and alias.is_write
    default = argument.default_value if argument.has_default_value() else None
    return Argument(argument.name, *_type(spelled), is_written, argument.kwarg_only, default)


def _type(spelled: str) -> tuple[str, bool, bool]:
    """The kind, whether it is a list, and whether it is optional."""
    found = re.match(r"(\w+)(?:\([^)]*\))?(\??)(\[\d*\])?(\??)", spelled)
    assert found is not None
    kind, element_optional, listed, optional = found.groups()
    if listed is None:
        return kind, False, bool(element_optional)
    return kind + element_optional, True, bool(optional)


def _spell(parsed: Any) -> tuple[list[str], list[str]]:
    """Types of arguments and results as text: only that distinguishes SymInt from int."""
    bare = re.sub(r'"(\\.|[^"\\])*"', "", str(parsed))  # without string literals
    taken, _, given = bare.rpartition(" -> ")
    arguments = taken[taken.index("(") + 1 : -1]
    results = given[1:-1] if given.startswith("(") else given
    return [part for part in _parts(arguments) if part != "*"], _parts(results)


def _parts(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [part for part in (*parts, text[start:].strip()) if part]


def _check(schema: Schema) -> None:
    names = [argument.name for argument in schema.arguments]
    for name in names:
        if names.count(name) > 1:
            raise errors.CustomOpError(
                f"{schema.qualified}: two arguments are called {name}",
                hint="give each argument a name of its own",
            )
    if "][" in str(schema.parsed):
        raise errors.CustomOpError(
            f"{schema.qualified}: lists of lists are not supported",
            hint="take one flat list, or a list for each",
        )
    for argument in schema.arguments:
        if argument.kind.removesuffix("?") not in KINDS:
            what = errors.unknown(f"type of argument {argument.name}", argument.kind, KINDS)
            raise errors.CustomOpError(f"{schema.qualified}: {what}")
    for result in schema.results:
        if result.kind.removesuffix("?") not in _CLASSES:
            what = errors.unknown("type of a result", result.kind, _CLASSES)
            raise errors.CustomOpError(f"{schema.qualified}: {what}")
    aliased = [r.name or "a result" for r in schema.parsed.returns if r.alias_info is not None]
    if aliased:
        raise errors.CustomOpError(
            f"{schema.qualified}: {', '.join(aliased)} shares memory with an argument",
            hint="results of an op are tensors of their own; leave the (a) out",
        )
