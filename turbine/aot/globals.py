"""Globals of a compiled module: declared in its class, read and written by procedures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, Unpack

import torch
from torch.utils import _pytree as torch_pytree

from turbine import dtypes, errors
from turbine.aot import module_trace
from turbine.aot.abstract import AbstractScalar, AbstractTensor, abstractify, is_abstract
from turbine.aot.arithmetic import IrScalar
from turbine.aot.calls import as_number, as_tensor, require_size
from turbine.aot.values import IrTensor, from_weight
from turbine.capture import trees
from turbine.capture.program import Weight
from turbine.capture.traits import (
    SCOPE,
    DeviceTensorTrait,
    ExternalTensorTrait,
    external_address,
)
from turbine.lower.weights import Number
from turbine.pytree import Tree, flatten

NameMapper = Callable[[str], str | None]


@dataclass(frozen=True)
class GlobalAttributes:
    """Options of globals. An external one is read by name from an archive of parameters."""

    mutable: bool | None = None
    external: bool | None = None  # False: in the code; None: as `export(weights=...)` says
    external_scope: str | None = None
    name_mapper: NameMapper | None = None  # from a global's name to its name in the archive
    uninitialized: bool | None = None
    noinline: bool | None = None  # keeps the compiler from folding the value

    def check(self) -> None:
        """Raise for options that exclude each other."""
        if self.external and self.uninitialized:
            raise errors.ProcedureError(
                "a global cannot be both external and uninitialized",
                hint="leave one of them out; the value of an external one comes from its archive",
            )
        if self.uninitialized and not self.mutable:
            raise errors.ProcedureError(
                "a global that is uninitialized has to be mutable", hint="give it mutable=True"
            )


class Settings(TypedDict, total=False):
    """Fields of `GlobalAttributes` by name; they override those of `attrs`."""

    mutable: bool | None
    external: bool | None
    external_scope: str | None
    name_mapper: NameMapper | None
    uninitialized: bool | None
    noinline: bool | None
    attrs: GlobalAttributes | None


def export_global(value: Any, *, name: str = "global", **settings: Unpack[Settings]) -> Any:
    """Declare a tensor or number as a global of a compiled module.

    Args:
        value: the initial value. An abstract one, such as `AbstractIndex` or
            `AbstractTensor(4, 8)`, starts at zero.
        name: the name of the global; that of the class attribute unless given.
        settings: options of the global:
            `mutable`: procedures may write it.
            `external`: its value is in an archive of parameters, not in the code.
            `external_scope`: the scope in the archive, "model" unless given.
            `name_mapper`: a function from the global's name to its name in the archive.
            `uninitialized`: it has no value until a procedure writes one.
            `noinline`: the compiler does not fold its value.
            `attrs`: a `GlobalAttributes` with defaults for all of these.

    Raises:
        ProcedureError: for an unknown option, or options that exclude each other.

    >>> import torch, turbine
    >>> from turbine import aot
    >>> class Counter(aot.CompiledModule):
    ...     count = aot.export_global(torch.zeros(1), mutable=True)
    ...     def add(self, x=aot.AbstractTensor(1)):
    ...         self.count = aot.jittable(torch.add)(self.count, x)
    ...     def read(self):
    ...         return self.count
    >>> counter = aot.export(Counter).compile()
    >>> _ = counter.add(torch.ones(1))
    >>> counter.read()
    tensor([1.])
    """
    return Global(value, _attributes(settings), None if name == "global" else name)


def export_global_tree(tree: Any, *, name: str = "global", **settings: Unpack[Settings]) -> Any:
    """Declare nested dicts, lists and tuples of tensors and numbers as globals.

    Args:
        tree: the initial values.
        name: a prefix of the globals' names; that of the class attribute unless given.
        settings: options of all of them, as for `export_global`.
    """
    return Global(tree, _attributes(settings), None if name == "global" else name)


def export_parameters(nn_module: torch.nn.Module, **settings: Unpack[Settings]) -> Any:
    """Declare the parameters of a PyTorch module as globals: a dict by their names.

    Args:
        nn_module: the module.
        settings: options of all of them, as for `export_global`.
    """
    return Global(dict(nn_module.named_parameters()), _attributes(settings), None)


def export_buffers(nn_module: torch.nn.Module, **settings: Unpack[Settings]) -> Any:
    """Declare the buffers of a PyTorch module as globals: a dict by their names.

    Args:
        nn_module: the module.
        settings: options of all of them, as for `export_global`.
    """
    return Global(dict(nn_module.named_buffers()), _attributes(settings), None)


def _attributes(settings: Settings) -> GlobalAttributes:
    start = settings.get("attrs") or GlobalAttributes()
    given = {k: v for k, v in settings.items() if k != "attrs" and v is not None}
    known = [field.name for field in fields(GlobalAttributes)]
    for name in given:
        if name not in known:
            raise errors.ProcedureError(errors.unknown("setting of a global", name, known))
    attributes = replace(start, **given)  # type: ignore[arg-type]  # names are checked
    attributes.check()
    return attributes


class Global:
    """The declaration of a global or nested globals; a procedure sees their values."""

    def __init__(self, value: Any, attributes: GlobalAttributes, name: str | None) -> None:
        leaves, spec = torch_pytree.tree_flatten(value)
        self.nest = value
        self.values = leaves
        self.tree = trees.from_spec(spec)
        self.attributes = attributes
        self.name = name
        self.attribute = ""
        self.held: list[Weight | Number] = []

    def declare(self, owner: str, attribute: str) -> None:
        """Set the class and name. Not __set_name__, whose errors Python wraps in others."""
        if self.attribute and self.attribute != attribute:
            raise errors.ProcedureError(
                f"{owner}.{self.attribute} and {owner}.{attribute} are one declaration",
                hint="declare a global for each",
            )
        self.attribute = attribute
        root = self.name or attribute
        names = [root + path for path in _leaf_paths(self.tree)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise errors.ProcedureError(
                f"two values of the global {attribute!r} are both named {', '.join(twice)}",
                hint="keys that hold dots can spell the same path twice",
            )
        self.held = [
            _make_global(name, value, self.attributes)
            for name, value in zip(names, self.values, strict=True)
        ]

    def abstractify(self) -> Any:
        """The types of the values, for the signature of a procedure."""
        return abstractify(self.nest)

    def __getitem__(self, key: Any) -> Any:
        """The declared value; in a procedure, `self.params[key]` reads the global."""
        return self.nest[key]

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        module_trace.require(f"the global {self.attribute!r}")
        return _live(self.tree, self.held)

    def __set__(self, instance: Any, value: Any) -> None:
        module_trace.require(f"the global {self.attribute!r}")
        _store_tree(self.tree, self.held, value, self.attribute)


def _leaf_paths(tree: Tree) -> list[str]:
    """The path to each leaf: ".a", ".b.0"; empty for a value that is not nested."""
    if tree.kind == "leaf":
        return [""]
    keys = tree.keys or tuple(range(len(tree.children)))
    pairs = zip(keys, tree.children, strict=True)
    return [f".{key}{path}" for key, child in pairs for path in _leaf_paths(child)]


def _make_global(name: str, value: Any, attributes: GlobalAttributes) -> Weight | Number:
    mutable = bool(attributes.mutable)
    if isinstance(value, torch.Tensor):
        return _weight(name, value, attributes)
    if not is_abstract(value):
        raise errors.ProcedureError(
            f"the global {name!r} cannot be a {type(value).__name__}",
            hint="give a tensor, a number, AbstractTensor(4, 8), or AbstractIndex",
        )
    abstract = abstractify(value)
    if isinstance(abstract, AbstractTensor):
        return _abstract_weight(name, abstract, attributes)
    if attributes.external:
        raise errors.ProcedureError(
            f"the number {name!r} cannot be external", hint="archives hold tensors"
        )
    start = 0 if isinstance(value, AbstractScalar) else value
    return Number(name, abstract.scalar.name, start, mutable)


def _abstract_weight(name: str, abstract: AbstractTensor, attributes: GlobalAttributes) -> Weight:
    """Zeros; the initial size of a dynamic axis is 0."""
    sizes = [size if isinstance(size, int) else 0 for size in abstract.size]
    open_axes = tuple(k for k, size in enumerate(abstract.size) if not isinstance(size, int))
    is_named = any(isinstance(size, str) for size in abstract.size)
    if open_axes and (is_named or attributes.external or not attributes.mutable):
        raise errors.ProcedureError(
            f"the global {name!r} has sizes that are not known: {abstract}",
            hint="one that varies is given as None, and the global is mutable and not external",
        )
    weight = _weight(name, torch.zeros(sizes, dtype=abstract.dtype), attributes)
    return replace(weight, open_axes=open_axes)


def _weight(name: str, tensor: torch.Tensor, attributes: GlobalAttributes) -> Weight:
    return Weight(
        name,
        tensor.detach(),
        mutable=bool(attributes.mutable),
        external=_external(name, tensor, attributes),
        in_code=attributes.external is False,
        uninitialized=bool(attributes.uninitialized),
        noinline=bool(attributes.noinline),
        device=DeviceTensorTrait.get(tensor),
    )


def _external(
    name: str, tensor: torch.Tensor, attributes: GlobalAttributes
) -> ExternalTensorTrait | None:
    if not attributes.external:
        return None if attributes.external is False else external_address(tensor)
    mapper = attributes.name_mapper
    mapped = mapper(name) if mapper is not None else None
    scope = attributes.external_scope or SCOPE
    return ExternalTensorTrait(scope, name if mapped is None else mapped)


def load(held: Weight | Number) -> IrTensor | IrScalar:
    """Load a global at the current insertion point."""
    trace = module_trace.require(f"the global {held.name!r}")

    def write(value: Any) -> None:
        store(held, value)

    if isinstance(held, Number):
        value = trace.weights.load_number(held, module_trace.here())
        return IrScalar(value, dtypes.SCALARS[held.dtype], write)
    return from_weight(held, write)


def store(held: Weight | Number, value: Any) -> None:
    """Store a value of the declared type to a global."""
    builder, location = (
        module_trace.require(f"the global {held.name!r}").weights,
        module_trace.here(),
    )
    if not held.mutable:
        raise errors.ProcedureError(
            f"the global {held.name!r} is not mutable",
            where=module_trace.line(),
            hint="declare it with mutable=True",
        )
    what = f"the value stored to the global {held.name!r}"
    if isinstance(held, Number):
        number = as_number(value, dtypes.SCALARS[held.dtype], what)
        builder.store_number(held, number.value, location)
        return
    tensor = as_tensor(value, dtypes.of_torch(held.tensor.dtype), held.shape, what)
    for axis, size in enumerate(held.shape):
        if size is not None:
            require_size(tensor, axis, size, what)
    builder.store(held, tensor.as_type(held.shape).value, location)


def _store_tree(tree: Tree, held: Sequence[Weight | Number], value: Any, path: str) -> None:
    try:
        leaves = flatten(tree, snapshot(value), path)
    except errors.ArgumentError as error:
        raise errors.ProcedureError(
            f"the value stored to the global {path!r} has another structure: {error.fact}",
            where=module_trace.line(),
            hint="store the dicts, lists and tuples that the global was declared with",
        ) from error
    for one, leaf in zip(held, leaves, strict=True):
        store(one, leaf)


def _live(tree: Tree, held: Sequence[Weight | Number]) -> Any:
    if tree.kind == "leaf":
        return load(held[0])
    if tree.kind in ("tuple", "list"):
        return LiveSequence(tree, held)
    return LiveMapping(tree, held)


def _part(tree: Tree, held: Sequence[Any], place: int) -> tuple[Tree, Sequence[Any]]:
    """A child of a tree, and the globals below it."""
    counts = [len(_leaf_paths(child)) for child in tree.children]
    start = sum(counts[:place])
    return tree.children[place], held[start : start + counts[place]]


class LiveMapping(Mapping[Any, Any]):
    """Globals by key. Reading loads a value, and setting stores one."""

    def __init__(self, tree: Tree, held: Sequence[Weight | Number]) -> None:
        self.tree = tree
        self.held = held

    def __getitem__(self, key: Any) -> Any:
        return _live(*_part(self.tree, self.held, self._place(key)))

    def __setitem__(self, key: Any, value: Any) -> None:
        tree, held = _part(self.tree, self.held, self._place(key))
        _store_tree(tree, held, value, str(key))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tree.keys)

    def __len__(self) -> int:
        return len(self.tree.keys)

    def _place(self, key: Any) -> int:
        if key not in self.tree.keys:
            fact = errors.unknown("global", str(key), map(str, self.tree.keys))
            raise errors.ProcedureError(fact, where=module_trace.line())
        return self.tree.keys.index(key)


class LiveSequence(Sequence[Any]):
    """Globals by index. Reading loads a value, and setting stores one."""

    def __init__(self, tree: Tree, held: Sequence[Weight | Number]) -> None:
        self.tree = tree
        self.held = held

    def __getitem__(self, place: Any) -> Any:
        chosen = range(len(self))[place]
        if isinstance(chosen, range):
            return [self[index] for index in chosen]
        return _live(*_part(self.tree, self.held, chosen))

    def __setitem__(self, place: int, value: Any) -> None:
        tree, held = _part(self.tree, self.held, range(len(self))[place])
        _store_tree(tree, held, value, str(place))

    def __len__(self) -> int:
        return len(self.tree.children)


def snapshot(tree: Any) -> Any:
    """A nested value with plain dicts and lists in place of live ones."""
    return torch_pytree.tree_map(_plain, tree)


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, LiveMapping):
        return {key: _plain(value) for key, value in leaf.items()}
    if isinstance(leaf, LiveSequence):
        items = [_plain(value) for value in leaf]
        return tuple(items) if leaf.tree.kind == "tuple" else items
    return leaf
