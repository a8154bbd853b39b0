"""Frozen dataclasses as JSON text, and back: the text may be damaged, which is a ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(value: Any) -> str:
    """A dataclass as compact JSON."""
    return json.dumps(asdict(value), separators=(",", ":"))


def decode(kind: type[T], text: str) -> T:
    """A dataclass from JSON; fields that are left out have their defaults.

    >>> from turbine.page.stages import Line
    >>> decode(Line, '{"text": "%0 = add", "ops": [1]}')
    Line(text='%0 = add', ops=(1,))
    """
    try:
        made: T = _decode(kind, json.loads(text))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return made


def _decode(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _decode(_without_none(inner), value)
    rule = _RULES.get(origin)
    if rule is not None:
        return rule(inner, value)
    if is_dataclass(kind):
        return _decode_fields(kind, value)
    if kind is float and type(value) is int:
        return float(value)
    return _expect(kind, value)


def _decode_fields(kind: Any, value: Any) -> Any:
    hints = get_type_hints(kind)
    rows = _expect(dict, value)
    known = {row.name for row in fields(kind)}
    return kind(**{name: _decode(hints[name], one) for name, one in rows.items() if name in known})


def _decode_tuple(inner: tuple[Any, ...], value: Any) -> Any:
    return tuple(_decode(inner[0], one) for one in _expect(list, value))


def _decode_dict(inner: tuple[Any, ...], value: Any) -> Any:
    return {key: _decode(inner[1], one) for key, one in _expect(dict, value).items()}


_RULES: dict[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    tuple: _decode_tuple,
    dict: _decode_dict,
}


def _without_none(kinds: tuple[Any, ...]) -> Any:
    (only,) = (kind for kind in kinds if kind is not NoneType)
    return only


def _expect(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:40]!r} is not of type {kind.__name__}")
    return value
