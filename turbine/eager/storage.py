"""Storages, which tensors that are views of each other share, and the views.

A tensor is a storage and a view of it. To write to a tensor is to give its storage a new value.
Views read it when they are next used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turbine.capture.effects import RESHAPES
from turbine.eager.layouts import Layout, layout_of

aten = torch.ops.aten


class Ref:
    """An operand in the arguments of an op: a result of the trace, or ~number of an input.

    `layout` is that of its tensor, if the op gives another one: a result may be written to a
    tensor.
    """

    __slots__ = ("index", "layout")

    def __init__(self, index: int, layout: Layout | None) -> None:
        self.index = index
        self.layout = layout

    def __repr__(self) -> str:
        return f"%{self.index}" if self.index >= 0 else f"%in{~self.index}"


class _Refs(dict[int, Ref]):
    def __missing__(self, index: int) -> Ref:
        return self.setdefault(index, Ref(index, None))


# The reference to a result or an input; one object for each, compared by identity.
reference = _Refs().__getitem__
_refs_with_layouts: dict[tuple[int, Layout], Ref] = {}


def reference_as(index: int, layout: Layout) -> Ref:
    """The reference to a result of a tensor with another layout; one object for each."""
    found = _refs_with_layouts.get((index, layout))
    if found is None:
        found = _refs_with_layouts.setdefault((index, layout), Ref(index, layout))
    return found


class Value:
    """What a storage holds: a CPU tensor, or the result of an op of the trace.

    `ref` is the operand for it in the trace with number `trace`, `views` are those for its views.
    `error` is what the op raised when it ran.
    """

    __slots__ = ("__weakref__", "data", "error", "layout", "ref", "trace", "views")

    def __init__(
        self, layout: Layout, data: Tensor | None = None, trace: int = -1, ref: Ref | None = None
    ) -> None:
        self.layout = layout
        self.data = data
        self.error: Exception | None = None
        self.trace = trace
        self.ref = ref
        self.views: dict[View, Ref] | None = None

    def enter(self, trace: int, ref: Ref) -> None:
        """Be an operand of a trace."""
        self.trace, self.ref, self.views = trace, ref, None


class Storage:
    """The memory of a tensor and of its views."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


class View:
    """A view of a storage: the whole, or a view op on another view of it.

    `which` of the op's results it is, if there are several. `by_memory` is whether it depends on
    how the whole is laid out. `call` is how a trace computes it: an op, its arguments, and what
    keys of nodes have of them.
    """

    __slots__ = ("args", "by_memory", "call", "layout", "parent", "target", "views", "which")

    def __init__(
        self,
        layout: Layout,
        parent: View | None = None,
        target: Any = None,
        args: tuple[Any, ...] = (),
        which: int | None = None,
    ) -> None:
        self.layout = layout
        self.parent = parent
        self.target = target
        self.args = args
        self.which = which
        self.by_memory: bool = parent is not None and (target in _BY_MEMORY or parent.by_memory)
        self.call: tuple[Any, list[Any], tuple[Any, ...]] | None = None
        self.views: dict[Any, View | list[View]] = {}

    def under(self, target: Any, args: tuple[Any, ...]) -> View | list[View]:
        """The view, or the views, that an op gives of this one. Equal views are mostly one object.

        An op without effect, such as detach, gives this one.
        """
        key = id(target), args
        found = self.views.get(key)
        if found is None:
            if len(self.views) >= _MOST_VIEWS:
                self.views.clear()
            found = self.views[key] = self._make(target, args)
        return found

    def _make(self, target: Any, args: tuple[Any, ...]) -> View | list[View]:
        if target in _IDENTITIES:
            return self
        found = target(self.layout.make("meta"), *_with_lists(args))
        if isinstance(found, Tensor):
            return View(layout_of(found), self, target, args)
        return [View(layout_of(one), self, target, args, n) for n, one in enumerate(found)]

    def of(self, base: Tensor) -> Tensor:
        """This view of a CPU tensor that holds the whole."""
        if self.parent is None:
            return base
        result = self.target(self.parent.of(base), *self.arguments())
        view: Tensor = result if self.which is None else result[self.which]
        return view

    def whole(self) -> View:
        """The storage that this is a view of."""
        return self if self.parent is None else self.parent.whole()

    def arguments(self) -> list[Any]:
        """The arguments of the op, with lists."""
        return _with_lists(self.args)


_MOST_VIEWS = 4096
_IDENTITIES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
_BY_MEMORY = {aten.as_strided.default, aten.view.dtype, aten._reshape_alias.default}


def _with_lists(args: tuple[Any, ...]) -> list[Any]:
    return [list(one) if isinstance(one, tuple) else one for one in args]


def whole(layout: Layout) -> View:
    """The view that is a whole storage; one object for each layout."""
    found: View | None = layout.whole
    if found is None:
        found = layout.whole = View(layout)
    return found


def inverse(view: View, parent: Ref, new: Ref) -> tuple[Any, list[Any]] | None:
    """The op, and its arguments, that gives the parent's values with those of a view replaced."""
    assert view.parent is not None
    target, args = view.target, view.arguments()
    size = view.parent.layout.size
    if target in _SCATTERS:
        return _SCATTERS[target], [parent, new, *args]
    if target in RESHAPES:
        return aten.reshape.default, [new, list(size)]
    if target is aten.permute.default:
        axes = [axis % len(size) for axis in args[0]]
        return target, [new, [axes.index(axis) for axis in range(len(size))]]
    if target in (aten.transpose.int, aten.t.default):
        return target, [new, *args]
    return None


_SCATTERS = {
    aten.select.int: aten.select_scatter.default,
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
}
