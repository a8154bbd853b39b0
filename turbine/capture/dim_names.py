"""Rename size symbols as the user named them: "batch", not "s31"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.dynamic_shapes import _DerivedDim, _DimHint

from turbine.pytree import Tree
from turbine.signature import Input, Signature


def with_user_names(signature: Signature, dynamic_shapes: Any) -> Signature:
    """The signature with the names that `dynamic_shapes` has for its symbols."""
    given = list(_leaf_specs(signature, dynamic_shapes))
    named: dict[str, str] = {}
    for leaf, spec in zip(signature.inputs, given, strict=True):
        named.update(_names(leaf, spec))
    return _rename(signature, named)


def with_traced_names(signature: Signature, exported: ExportedProgram) -> Signature:
    """The signature with the names that torch.export was given, where it still has them.

    A program that was saved and loaded has lost them.
    """
    shapes = {leaf.name: leaf.shape for leaf in signature.inputs}
    named = {}
    for source, name in _debug_names(exported).items():
        found = _SOURCE.fullmatch(source)
        if found is None or not name.isidentifier() or name.startswith("_"):
            continue
        shape, axis = shapes.get(found["root"] + found["path"], ()), int(found["axis"])
        if axis < len(shape) and str(shape[axis]).isidentifier():
            named[str(shape[axis])] = name
    return _rename(signature, named)


# How PyTorch writes the size of an argument: L['x']['ids'].size()[0].
_SOURCE = re.compile(r"L\['(?P<root>\w+)'\](?P<path>.*)\.size\(\)\[(?P<axis>\d+)\]")


def _debug_names(exported: ExportedProgram) -> dict[str, str]:
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
            return value.fake_mode.shape_env.source_name_to_debug_name
    return {}


def _leaf_specs(signature: Signature, dynamic_shapes: Any) -> Iterator[Any]:
    """The user's specification for each input leaf, in order."""
    positional, keywords = signature.in_tree.children
    names = [*signature.parameters[: len(positional.children)], *map(str, keywords.keys)]
    for place, (name, tree) in enumerate(
        zip(names, (*positional.children, *keywords.children), strict=True)
    ):
        yield from _walk(tree, _pick(dynamic_shapes, place, name))


def _walk(tree: Tree, spec: Any) -> Iterator[Any]:
    if tree.kind == "leaf":
        yield spec
        return
    keys = tree.keys or range(len(tree.children))
    for place, (key, child) in enumerate(zip(keys, tree.children, strict=True)):
        yield from _walk(child, _pick(spec, place, key))


def _pick(spec: Any, place: int, key: str | int) -> Any:
    if isinstance(spec, Mapping):
        return spec.get(key)
    if isinstance(spec, (tuple, list)) and place < len(spec):
        return spec[place]
    return None


def _names(leaf: Input, spec: Any) -> Iterator[tuple[str, str]]:
    """(symbol, user's name) for each axis whose size is a symbol and whose Dim has a name."""
    for axis, dim in enumerate(leaf.shape):
        given = _pick(spec, axis, axis)
        plain = isinstance(given, type) or hasattr(given, "__name__")
        if plain and not isinstance(given, (_DimHint, _DerivedDim)) and str(dim).isidentifier():
            yield str(dim), given.__name__


def _rename(signature: Signature, named: Mapping[str, str]) -> Signature:
    # Not with names that stand for two symbols, or that are symbols already.
    if len(set(named.values())) != len(named) or set(named.values()) & set(signature.symbols):
        return signature

    def text(value: Any) -> Any:
        return re.sub(r"[A-Za-z_]\w*", lambda m: named.get(m[0], m[0]), value)

    def leaf(item: Any) -> Any:
        shape = tuple(text(d) if isinstance(d, str) else d for d in item.shape)
        value = text(item.value) if item.kind in ("int", "size") else item.value
        return replace(item, shape=shape, value=value)

    return replace(
        signature,
        inputs=tuple(leaf(item) for item in signature.inputs),
        outputs=tuple(leaf(item) for item in signature.outputs),
        symbols={text(symbol): limits for symbol, limits in signature.symbols.items()},
        conditions=tuple(text(condition) for condition in signature.conditions),
    )
