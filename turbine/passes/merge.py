"""Merge modules: two in, one with the ops of both out, with distinct names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbine import errors
from turbine.mlir import context as mlir_context
from turbine.mlir import function, rewrites, symbols
from turbine.mlir.ir import Attribute, InsertionPoint, Module, Operation, SymbolTable
from turbine.mlir.matchers import FuncOpMatcher, GlobalOpMatcher
from turbine.mlir.symbols import NAME, VISIBILITY, is_private, symbol_name
from turbine.passes.base import Pass


@dataclass(frozen=True)
class Merge(Pass):
    """Merge another module into this one; `renames` are new names for symbols of the other.

    >>> from turbine.mlir import context
    >>> module = context.parse("func.func @f() { return }")
    >>> Merge(context.parse("func.func @f() { return }"), {"f": "g"}).run(module)
    >>> [str(op.name) for op in module.body.operations]
    ['"f"', '"g"']
    """

    name = "merge"
    other: Module
    renames: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Merge:
        """Parse a file and optional renames: other.mlir,old=new,old=new."""
        path, *pairs = text.split(",")
        renames = {}
        for pair in pairs:
            old, equals, new = pair.partition("=")
            if not (old and equals and new):
                raise errors.TransformError(
                    f"--{cls.name}: {pair!r} is not OLD=NEW",
                    hint=f"write --{cls.name} other.mlir,old=new",
                )
            if old in renames:
                raise errors.TransformError(
                    f"--{cls.name}: {old!r} is renamed twice", hint="leave one of the renames out"
                )
            renames[old] = new
        return cls(mlir_context.read(Path(path).expanduser()), renames)

    def run(self, module: Module) -> None:
        """Merge a copy of the other module."""
        source = copy_into(self.other, module)
        Merger(source, module, user_rename_map=self.renames).merge()


def copy_into(source: Module, target: Module) -> Module:
    """A copy of a module in the context of another."""
    if source.context == target.context:
        return rewrites.clone(source)
    return mlir_context.parse(mlir_context.to_bytecode(source), target.context)


class Merger:
    """Moves the ops of a source module to a target, and leaves an empty source.

    Symbols are renamed by `user_rename_map`, or keep their names. A private symbol whose name is
    taken is renamed; for a public one it is an error. A global is merged with one of the target if
    the map says so and the types agree, or if both are immutable with the same initial value. A
    declaration without a body is merged with the target's function of its name and type. All is
    checked before anything is moved.
    """

    def __init__(
        self,
        source: Module,
        target: Module,
        *,
        user_rename_map: Mapping[str, str] | None = None,
        target_symbol_table: SymbolTable | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.user_rename_map = dict(user_rename_map or {})
        self.target_symbol_table = target_symbol_table or SymbolTable(target.operation)
        self._names: dict[str, str] = {}
        self._aliases: set[str] = set()

    def merge(self) -> None:
        """Move the ops, and update references to renamed symbols."""
        assert self.source.context == self.target.context
        named = {symbol_name(op): op for op in _top(self.source) if symbols.is_symbol(op)}
        attributes = self._attributes()
        self._choose_names(named)
        symbols.rename(self.source, self._names)
        for name in self._aliases:
            named[name].erase()
        self._move()
        for name in attributes:
            attribute = self.source.operation.attributes[name]
            self.target.operation.attributes[name] = attribute

    def translate_symbol(self, name: str) -> str:
        """The name in the target of a symbol of the source."""
        return self._names.get(name, name)

    def _choose_names(self, named: Mapping[str, Operation]) -> None:
        for name in self.user_rename_map:
            if name not in named:
                raise errors.TransformError(errors.unknown("symbol to rename", name, named))
        taken: dict[str, str] = {}
        # The user's names and public names first; private names can be changed.
        for name in sorted(named, key=lambda name: self._rank(name, named[name])):
            op = named[name]
            alias = self._alias(name, op)
            if alias is not None:
                self._aliases.add(name)
                self._names[name] = alias
                continue
            new = self._free_name(name, op, taken)
            taken[new] = name
            self._names[name] = new

    def _rank(self, name: str, op: Operation) -> int:
        return 0 if name in self.user_rename_map else 2 if is_private(op) else 1

    def _alias(self, name: str, op: Operation) -> str | None:
        """The symbol of the target that an op is merged with, if any."""
        wanted = self.user_rename_map.get(name)
        if wanted is not None:
            known = wanted in self.target_symbol_table
            return wanted if known and self._can_stand_for(name, op, wanted) else None
        if GlobalOpMatcher()(op) is not None:
            same = (symbol_name(g) for g in _globals(self.target) if _traits(g) == _traits(op))
            return next(same, None) if _is_fixed(op) else None
        known = name in self.target_symbol_table
        if known and _is_declaration(op) and self._can_stand_for(name, op, name):
            return name
        return None

    def _can_stand_for(self, name: str, op: Operation, other: str) -> bool:
        """Whether a rename to a symbol of the target merges the two."""
        theirs = self.target_symbol_table[other].operation
        is_global = GlobalOpMatcher()(op) is not None and GlobalOpMatcher()(theirs) is not None
        if not is_global and not (_is_declaration(op) and FuncOpMatcher()(theirs) is not None):
            return False
        ours, wanted = _kind(op), _kind(theirs)
        if ours != wanted:
            raise errors.TransformError(
                f"@{name} cannot stand for @{other}: {ours} is not {wanted}",
                where=function.source_line(op.location),
                hint="give it another name with a rename",
            )
        return True

    def _free_name(self, name: str, op: Operation, taken: Mapping[str, str]) -> str:
        wanted = self.user_rename_map.get(name, name)
        if wanted not in taken and wanted not in self.target_symbol_table:
            return wanted
        if name not in self.user_rename_map and is_private(op):
            used = {*taken, *self.user_rename_map.values()}
            numbered = (f"{name}_{number}" for number in itertools.count(1))
            return next(n for n in numbered if n not in used and n not in self.target_symbol_table)
        holder = f"@{taken[wanted]} of the source" if wanted in taken else "the target"
        what = f"@{name}" if name == wanted else f"@{name}, renamed to @{wanted},"
        raise errors.TransformError(
            f"{what} collides with @{wanted}: {holder} has that name",
            where=function.source_line(op.location),
            hint="give it another name with a rename",
        )

    def _attributes(self) -> list[str]:
        """The attributes of the source module that the target lacks."""
        ours, theirs = self.source.operation.attributes, self.target.operation.attributes
        names = [name for name in ours if name != NAME]
        for name in names:
            if name in theirs and ours[name] != theirs[name]:
                raise errors.TransformError(
                    f"the modules disagree about {name}: {ours[name]} and {theirs[name]}",
                    hint=f"remove {name} from one of them",
                )
        return [name for name in names if name not in theirs]

    def _move(self) -> None:
        """Globals go after the target's globals, everything else to the end, in order."""
        after = next((op for op in _top(self.target) if op.name != "util.global"), None)
        top = InsertionPoint(after) if after is not None else InsertionPoint(self.target.body)
        for op in _top(self.source):
            op.detach_from_parent()
            (top if op.name == "util.global" else InsertionPoint(self.target.body)).insert(op)


def _top(module: Module) -> list[Operation]:
    return [op.operation for op in module.body.operations]


def _globals(module: Module) -> list[Operation]:
    return [op for op in _top(module) if op.name == "util.global"]


def _traits(op: Operation) -> dict[str, Attribute]:
    """The attributes that two globals must share to be merged."""
    named = (NAME, VISIBILITY)
    return {name: op.attributes[name] for name in op.attributes if name not in named}


def _is_fixed(op: Operation) -> bool:
    """Whether a global is immutable with an initial value."""
    return "is_mutable" not in op.attributes and "initial_value" in op.attributes


def _kind(op: Operation) -> str:
    """The type that a global or function must share with the one it is merged with."""
    if op.name != "util.global":
        return str(op.attributes["function_type"])
    return f"{'mutable ' * ('is_mutable' in op.attributes)}{op.attributes['type']}"


def _is_declaration(op: Operation) -> bool:
    return FuncOpMatcher()(op) is not None and not list(op.regions[0].blocks)
