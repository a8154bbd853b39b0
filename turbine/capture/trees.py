"""Convert torch's TreeSpec to the tree that an artifact stores."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch.utils._pytree import TreeSpec

from turbine import errors
from turbine.pytree import LEAF, Tree

_SEQUENCES = {tuple: "tuple", list: "list"}
_MAPPINGS = {dict: "dict", OrderedDict: "ordered_dict"}


def from_spec(spec: TreeSpec) -> Tree:
    """The same structure as plain data."""
    if spec.is_leaf():
        return LEAF
    children = tuple(from_spec(child) for child in spec.children())
    if spec.type in _SEQUENCES:
        return Tree(_SEQUENCES[spec.type], children)
    if spec.type in _MAPPINGS:
        return Tree(_MAPPINGS[spec.type], children, tuple(spec.context))
    return Tree("record", children, _record_keys(spec, len(children)), _type_path(spec))


def arguments(in_spec: TreeSpec) -> Tree:
    """The positional half of an (args, kwargs) spec."""
    return from_spec(in_spec).children[0]


def _record_keys(spec: TreeSpec, count: int) -> tuple[str, ...]:
    """Field names of a namedtuple, a registered dataclass or a dict-like result class."""
    fields = _named_fields(_class(spec), spec.context)
    names = tuple(name for name in fields if isinstance(name, str))
    if len(names) == count:
        return names
    raise errors.ExportError(
        f"values of type {_class(spec).__name__} cannot be stored in an artifact",
        hint="take and return tuples, lists, dicts, namedtuples or registered dataclasses",
    )


def _class(spec: TreeSpec) -> Any:
    """The class of a record; torch marks a namedtuple by a function and names it in the context."""
    return spec.context if isinstance(spec.context, type) else spec.type


def _named_fields(kind: Any, context: Any) -> tuple[Any, ...]:
    if issubclass(kind, tuple):
        # The result of torch.sort and similar ops is no namedtuple, and has other names of fields.
        return tuple(vars(kind).get("_fields") or kind.__match_args__)
    if isinstance(context, (list, tuple)):
        # A dataclass keeps (fields with a value, fields that were None).
        return tuple(context[0] if context and isinstance(context[0], (list, tuple)) else context)
    return ()


def _type_path(spec: TreeSpec) -> str:
    return f"{_class(spec).__module__}:{_class(spec).__qualname__}"
