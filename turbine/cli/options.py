"""Derive command-line options from a verb's signature, and call the verb with parsed options."""

from __future__ import annotations

import inspect
import itertools
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from turbine import errors

Verb = Callable[..., int]


@dataclass(frozen=True)
class Assignment:
    """One NAME=VALUE of the command line."""

    name: str
    value: str

    @staticmethod
    def parse(text: str) -> Assignment:
        """Split at the first "="; argparse reports what is wrong with the text."""
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
        return Assignment(name, value)


@dataclass(frozen=True)
class Ordered:
    """The text of an option whose order among other options matters."""

    position: int
    text: str

    @staticmethod
    def parse(text: str) -> Ordered:
        """Number the texts as argparse comes to them, from left to right."""
        return Ordered(next(_positions), text)


_positions = itertools.count()


def add_options(parser: ArgumentParser, verb: Verb) -> None:
    """Give a parser one option per parameter of the verb.

    A positional parameter stays positional and a keyword-only one becomes --its-name; bool is a
    switch, tuple[T, ...] may be repeated, Literal lists the choices. Annotated holds the help
    text, then any short spellings: `output: Annotated[Path, "where to write", "-o"]`.
    """
    hints = get_type_hints(verb, include_extras=True)
    for parameter in inspect.signature(verb).parameters.values():
        kind, text, *short = get_args(hints[parameter.name])
        settings = {"help": _help(text, parameter.default), **_settings(kind)}
        if parameter.kind is not Parameter.KEYWORD_ONLY:
            parser.add_argument(parameter.name, **{**settings, "metavar": parameter.name.upper()})
            continue
        spelling = f"--{parameter.name.replace('_', '-')}"
        parser.add_argument(*short, spelling, **settings, **_presence(parameter))


def call(verb: Verb, options: Namespace) -> int:
    """Call the verb with what was parsed from the options made for it."""
    args, kwargs = [], {}
    for parameter in inspect.signature(verb).parameters.values():
        value = vars(options)[parameter.name]
        if parameter.kind is not Parameter.KEYWORD_ONLY:
            args.append(value)
        else:
            kwargs[parameter.name] = tuple(value) if isinstance(value, list) else value
    return verb(*args, **kwargs)


def _settings(kind: Any) -> dict[str, Any]:
    """Arguments of `add_argument` for a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"choices": inner}
    if origin is tuple:
        return {"action": "append", **_settings(inner[0])}
    if NoneType in inner:
        return _settings(next(item for item in inner if item is not NoneType))
    return SETTINGS[kind]


def _presence(parameter: Parameter) -> dict[str, Any]:
    if parameter.default is Parameter.empty:
        return {"required": True}
    is_repeated = isinstance(parameter.default, tuple)
    return {"default": list(parameter.default) if is_repeated else parameter.default}


def _help(text: str, default: Any) -> str:
    if isinstance(default, tuple):
        return f"{text} (repeatable)"
    has_default = default is not None and default is not False and default is not Parameter.empty
    return f"{text} (default: {default})" if has_default else text


def _path(text: str) -> Path:
    return Path(text).expanduser()


SETTINGS: dict[Any, dict[str, Any]] = {
    bool: {"action": "store_true"},
    str: {},
    int: {"type": int},
    float: {"type": float},
    Path: {"type": _path, "metavar": "FILE"},
    Ordered: {"type": Ordered.parse, "metavar": "TEXT"},
    Assignment: {"type": Assignment.parse, "metavar": "NAME=VALUE"},
}


def check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Raise for a file that cannot be written, before anything is compiled or run."""
    if path.suffix not in suffixes:
        raise errors.ConfigError(errors.unknown("output suffix", path.suffix, suffixes))
    if not path.parent.is_dir():
        raise errors.ConfigError(
            f"no folder {path.parent} to write {path.name} in",
            hint=f"make it first: mkdir -p {path.parent}",
        )
