"""Nested arguments and results as flat leaves, without torch: the tree an artifact stores."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from types import ModuleType
from typing import Any

from turbine import errors


@dataclass(frozen=True)
class Tree:
    """The structure of a nested value. `keys` name the children of a dict or a record."""

    kind: str  # "leaf", "tuple", "list", "dict", "ordered_dict" or "record"
    children: tuple[Tree, ...] = ()
    keys: tuple[str | int, ...] = ()
    type_path: str = ""  # a record's class, "module:qualname"

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` turns back into this tree."""
        if self.kind == "leaf":
            return {"kind": "leaf"}
        odd = [key for key in self.keys if not isinstance(key, (str, int))]
        if odd:
            raise errors.ExportError(
                f"a dict with the keys {odd} cannot be stored in an artifact",
                hint="use strings or ints as keys",
            )
        return {
            "kind": self.kind,
            "children": [child.to_json() for child in self.children],
            "keys": list(self.keys),
            "type": self.type_path,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Tree:
        """The tree that `to_json` described."""
        children = tuple(Tree.from_json(child) for child in data.get("children", ()))
        return Tree(data["kind"], children, tuple(data.get("keys", ())), data.get("type", ""))


LEAF = Tree("leaf")


def flatten(tree: Tree, value: Any, path: str = "") -> list[Any]:
    """The leaves of a value with the structure of `tree`; an error names the first mismatch."""
    if tree.kind == "leaf":
        return [value]
    leaves: list[Any] = []
    for child, (child_path, child_value) in zip(
        tree.children, _children(tree, value, path), strict=True
    ):
        leaves += flatten(child, child_value, child_path)
    return leaves


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """The nested value with these leaves."""
    return _build(tree, iter(leaves))


def paths(tree: Tree, path: str = "") -> list[str]:
    """The path of each leaf in Python syntax: "x", "batch['ids'][0]"."""
    if tree.kind == "leaf":
        return [path]
    steps = _steps(tree)
    return [
        p
        for child, step in zip(tree.children, steps, strict=True)
        for p in paths(child, path + step)
    ]


def to_text(tree: Tree, leaves: Sequence[str]) -> str:
    """The nested value as Python would print it, with texts for the leaves.

    >>> to_text(Tree("dict", (LEAF, Tree("tuple", (LEAF,))), ("loss", "parts")), ["f32", "i64"])
    "{'loss': f32, 'parts': (i64,)}"
    """
    return _print(tree, iter(leaves))


_STRUCTURE = "pass the same structure that the model was exported with"


def _children(tree: Tree, value: Any, path: str) -> list[tuple[str, Any]]:
    if tree.kind in ("tuple", "list"):
        if not isinstance(value, (tuple, list)):
            raise _mismatch(tree, value, path)
        if len(value) != len(tree.children):
            raise errors.ArgumentError(
                f"{path or 'arguments'} has {len(value)} items, expected {len(tree.children)}",
                hint=_STRUCTURE,
            )
        return [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    items = _fields(tree, value) if tree.kind == "record" else value
    if not isinstance(items, dict):
        raise _mismatch(tree, value, path)
    if items.keys() != set(tree.keys):
        missing = [str(key) for key in tree.keys if key not in items]
        extra = [str(key) for key in items if key not in tree.keys]
        raise errors.ArgumentError(
            f"{path or 'the arguments'} has the wrong keys: missing={missing} extra={extra}",
            hint=_STRUCTURE,
        )
    steps = _steps(tree)
    return [(path + step, items[key]) for step, key in zip(steps, tree.keys, strict=True)]


def _fields(tree: Tree, value: Any) -> dict[Any, Any] | None:
    """The fields of a record. One that was None at export is not a leaf, and has to be None."""
    if isinstance(value, dict):
        fields = value
    elif is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclass_fields(value)}
    elif all(hasattr(value, str(key)) for key in tree.keys):
        fields = {key: getattr(value, str(key)) for key in tree.keys}
    else:
        return None
    return {key: field for key, field in fields.items() if field is not None or key in tree.keys}


def _mismatch(tree: Tree, value: Any, path: str) -> errors.ArgumentError:
    expected = tree.type_path or tree.kind
    return errors.ArgumentError(
        f"{path or 'argument'} is a {type(value).__name__}, expected a {expected}",
        hint=_STRUCTURE,
    )


def _steps(tree: Tree) -> list[str]:
    if tree.kind in ("tuple", "list"):
        return [f"[{i}]" for i in range(len(tree.children))]
    if tree.kind == "record":
        return [f".{key}" for key in tree.keys]
    return [f"[{key!r}]" for key in tree.keys]


def _build(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree.kind == "leaf":
        return next(leaves)
    children = [_build(child, leaves) for child in tree.children]
    if tree.kind == "tuple":
        return tuple(children)
    if tree.kind == "list":
        return children
    items = dict(zip(tree.keys, children, strict=True))
    if tree.kind == "ordered_dict":
        return OrderedDict(items)
    return _record(tree.type_path, items) if tree.kind == "record" else items


def _print(tree: Tree, leaves: Iterator[str]) -> str:
    if tree.kind == "leaf":
        return next(leaves)
    children = [_print(child, leaves) for child in tree.children]
    if tree.kind == "tuple":
        return f"({children[0]},)" if len(children) == 1 else f"({', '.join(children)})"
    if tree.kind == "list":
        return f"[{', '.join(children)}]"
    named = zip(tree.keys, children, strict=True)
    if tree.kind == "record":
        name = tree.type_path.rpartition(":")[2].rpartition(".")[2]
        return f"{name}({', '.join(f'{key}={child}' for key, child in named)})"
    return f"{{{', '.join(f'{key!r}: {child}' for key, child in named)}}}"


def _record(type_path: str, items: dict[str | int, Any]) -> Any:
    """An instance of the record's class, or a Record where that class is not imported."""
    made = _record_class(type_path)
    if made is None:
        return Record(items)
    named = {str(key): value for key, value in items.items()}
    if is_dataclass(made):
        named = {**dict.fromkeys(f.name for f in dataclass_fields(made) if f.init), **named}
    if _is_structseq(made):  # such as torch.sort's result
        return made(tuple(named.values()))
    return made(**named)


class Record(dict[Any, Any]):
    """The fields of a record whose class is not imported: `result["loss"]` or `result.loss`."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(errors.unknown("field", name, map(str, self)), obj=self)
        return self[name]


def _record_class(type_path: str) -> Any:
    """The class of a record, if the program has imported it.

    Note [Names in files]: the path comes from a file, perhaps a stranger's. So nothing is imported
    for its sake, and nothing is called but a class whose instances are records.
    """
    module, _, qualname = type_path.partition(":")
    made: Any = sys.modules.get(module)
    for name in qualname.split("."):
        if not isinstance(made, ModuleType | type) or name not in vars(made):
            return None
        made = vars(made)[name]
    return made if isinstance(made, type) and _is_record(made) else None


def _is_record(made: type) -> bool:
    is_named_tuple = issubclass(made, tuple) and any("_fields" in vars(of) for of in made.__mro__)
    return is_dataclass(made) or is_named_tuple or _is_structseq(made)


def _is_structseq(made: type) -> bool:
    return issubclass(made, tuple) and vars(made).get("n_sequence_fields") is not None
