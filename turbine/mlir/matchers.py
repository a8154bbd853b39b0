"""Find ops of a module with matchers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from iree.compiler.ir import (
    Attribute,
    Block,
    FlatSymbolRefAttr,
    IntegerAttr,
    Operation,
    OpView,
    Region,
    Type,
    TypeAttr,
    Value,
)

from turbine.mlir.symbols import symbol_name


@dataclass(frozen=True)
class OpMatchResult:
    """An op that matched."""

    op: Operation


Result = TypeVar("Result", bound=OpMatchResult, covariant=True)
# A matcher takes an op, or a value for the op that defines it.
MaybeOperation: TypeAlias = Value | OpMatchResult | Operation | OpView | None


class OpMatcher(ABC, Generic[Result]):
    """Decides whether an op matches; a subclass defines `match`.

    >>> from turbine.mlir import context, matchers
    >>> module = context.parse("func.func @f() { return }")
    >>> [match.op.name for match in matchers.match_children(module, matchers.FuncOpMatcher())]
    ['func.func']
    """

    def __call__(self, maybe: MaybeOperation) -> Result | None:
        """The match of an op, or of the op that defines a value; None if there is none."""
        op = operation_of(maybe)
        return None if op is None else self._match(op)

    def _match(self, op: Operation) -> Result | None:
        return self.match(op)

    @abstractmethod
    def match(self, op: Operation) -> Result | None:
        """The match of an op, or None."""


class NamedOpMatcher(OpMatcher[Result]):
    """Matches ops by name; a subclass may refine `match`."""

    def __init__(self, *op_names: str) -> None:
        self.op_names = op_names

    def _match(self, op: Operation) -> Result | None:
        return self.match(op) if op.name in self.op_names else None

    def match(self, op: Operation) -> Result | None:
        """The match of an op that has one of the names."""
        return OpMatchResult(op)  # type: ignore[return-value]


class FuncOpMatcher(NamedOpMatcher[OpMatchResult]):
    """Matches functions."""

    def __init__(self) -> None:
        super().__init__("func.func", "util.func")


@dataclass(frozen=True)
class GlobalOpResult(OpMatchResult):
    """A global."""

    @property
    def sym_name(self) -> str:
        """Its name."""
        return symbol_name(self.op)

    @property
    def type(self) -> Type:
        """The type of its value."""
        return TypeAttr(self.op.attributes["type"]).value

    @property
    def initial_value(self) -> Attribute | None:
        """The initial value, if the IR has one."""
        attributes = self.op.attributes
        return attributes["initial_value"] if "initial_value" in attributes else None  # noqa: SIM401

    @property
    def is_mutable(self) -> bool:
        """Whether a program may store to it."""
        return "is_mutable" in self.op.attributes


class GlobalOpMatcher(NamedOpMatcher[GlobalOpResult]):
    """Matches globals."""

    def __init__(self) -> None:
        super().__init__("util.global")

    def match(self, op: Operation) -> GlobalOpResult:
        """A match with the global's name, type and initial value."""
        return GlobalOpResult(op)


GlobalsDict = dict[str, GlobalOpResult]


def globals_of(of: Any) -> GlobalsDict:
    """The globals of a module by their names."""
    return {match.sym_name: match for match in match_children(of, GlobalOpMatcher())}


@dataclass(frozen=True)
class GlobalLoadResult(OpMatchResult):
    """A load of a global, with the global if the matcher was given the globals."""

    resolved_global: GlobalOpResult | None = None

    @property
    def global_ref(self) -> str:
        """The name of the global."""
        return str(FlatSymbolRefAttr(self.op.attributes["global"]).value)


class GlobalLoadMatcher(NamedOpMatcher[GlobalLoadResult]):
    """Matches reads of globals, also through a conversion to a torch tensor."""

    def __init__(self, globals: GlobalsDict | None = None) -> None:
        super().__init__("util.global.load", "torch_c.from_builtin_tensor")
        self.globals = globals or {}

    def match(self, op: Operation) -> GlobalLoadResult | None:
        """The load that an op reads."""
        if op.name != "util.global.load":
            source = operation_of(op.operands[0])
            return None if source is None else self(source)
        load = GlobalLoadResult(op)
        return GlobalLoadResult(op, self.globals.get(load.global_ref))


def callee(op: Operation) -> str | None:
    """The name of the function that an op calls, if it is a call."""
    if op.name not in ("func.call", "util.call"):
        return None
    return str(FlatSymbolRefAttr(op.attributes["callee"]).value)


class ConstantIntMatcher(NamedOpMatcher[OpMatchResult]):
    """Matches one integer constant of the torch dialect."""

    def __init__(self, value: int) -> None:
        super().__init__("torch.constant.int")
        self.value = value

    def match(self, op: Operation) -> OpMatchResult | None:
        """The constant, if it has the value."""
        return OpMatchResult(op) if _integer(op) == self.value else None


@dataclass(frozen=True)
class Transpose2DResult(OpMatchResult):
    """A transpose of a matrix."""

    @property
    def input(self) -> Value:
        """The matrix before."""
        return self.op.operands[0]


class Transpose2DMatcher(NamedOpMatcher[Transpose2DResult]):
    """Matches every spelling of a transposed matrix: transpose.int, permute, t and numpy_T."""

    def __init__(self) -> None:
        super().__init__(*_AXES)

    def match(self, op: Operation) -> Transpose2DResult | None:
        """The transpose, if it is one of a matrix."""
        is_matrix = rank(op.operands[0].type) == 2
        return Transpose2DResult(op) if is_matrix and _AXES[op.name](op) else None


def match_children(of: Any, *matchers: OpMatcher[Result]) -> list[Result]:
    """The matches among the ops inside a module, op, region, block or list of these.

    Regions of ops are entered, so an op in a loop is found; modules within modules and
    executables are not, as their symbols are their own. The first matcher that fits counts.
    """
    found = (_first(op, matchers) for block in _blocks(of) for op in walk_block(block))
    return [match for match in found if match is not None]


def walk(operation: Operation) -> Iterator[Operation]:
    """Every op inside an op, each before the ops inside it."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from walk(op.operation)


def walk_block(block: Block) -> Iterator[Operation]:
    """Every op of a block and of nested blocks, except in ops with a symbol table."""
    for op in block.operations:
        yield op.operation
        if op.operation.name not in SYMBOL_TABLES:
            for inner in _blocks(op.operation):
                yield from walk_block(inner)


SYMBOL_TABLES = {
    "builtin.module",
    "flow.executable",
    "hal.executable",
    "hal.executable.source",
    "hal.executable.variant",
    "stream.executable",
    "vm.module",
}


def operation_of(maybe: MaybeOperation) -> Operation | None:
    """The op, or the op that defines a value; None for a block argument."""
    if isinstance(maybe, OpMatchResult):
        return maybe.op
    owner = maybe.owner if isinstance(maybe, Value) else maybe
    return None if owner is None or isinstance(owner, Block) else owner.operation


def rank(of: Type) -> int | None:
    """The number of axes of a torch tensor type, where it is known."""
    sizes = shape(of)
    return None if sizes is None else len(sizes)


def shape(of: Type) -> tuple[int | None, ...] | None:
    """The sizes of a torch tensor type, None for a dynamic one."""
    text = str(of)
    if not text.startswith("!torch.vtensor<["):
        return None
    inside = text.removeprefix("!torch.vtensor<[").partition("]")[0]
    return tuple(None if size == "?" else int(size) for size in inside.split(",") if size)


def _first(op: Operation, matchers: Iterable[OpMatcher[Result]]) -> Result | None:
    return next((match for m in matchers if (match := m(op)) is not None), None)


def _blocks(of: Any) -> Iterator[Block]:
    if isinstance(of, Block):
        yield of
    elif isinstance(of, Region):
        yield from of.blocks
    elif isinstance(of, list | tuple):
        for item in of:
            yield from _blocks(item)
    elif of is not None:
        inside: Operation = of.op if isinstance(of, OpMatchResult) else of.operation
        for region in inside.regions:
            yield from region.blocks


def _integer(op: Operation) -> int:
    return int(IntegerAttr(op.attributes["value"]).value)


def _integers(values: Sequence[Value]) -> list[int | None]:
    makers = [operation_of(value) for value in values]
    return [
        _integer(op) if op is not None and op.name == "torch.constant.int" else None
        for op in makers
    ]


def _exchanges(op: Operation) -> bool:
    return {axis % 2 if axis is not None else None for axis in _integers(op.operands[1:])} == {0, 1}


def _permutes(op: Operation) -> bool:
    axes = operation_of(op.operands[1])
    if axes is None or axes.name != "torch.prim.ListConstruct":
        return False
    return [axis % 2 if axis is not None else None for axis in _integers(axes.operands)] == [1, 0]


def _always(op: Operation) -> bool:
    return True


_AXES = {
    "torch.aten.transpose.int": _exchanges,
    "torch.aten.permute": _permutes,
    "torch.aten.t": _always,
    "torch.aten.numpy_T": _always,
}
