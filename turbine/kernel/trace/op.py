"""Declare ops of the kernel language: reference semantics in torch, types and masks.

Tracing an op adds a node. The interpreter calls its meaning, a torch function. A backend has a rule
for it in a table, and is tested against the meaning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import fx

from turbine import dtypes, errors
from turbine.algebra import ONE, Expr
from turbine.dtypes import Dtype
from turbine.kernel.trace import tracer
from turbine.kernel.trace.tracer import Buffer, IndexExpr, Tile, Traced, expr_of, user_line
from turbine.kernel.trace.types import BOOL, F32, I64, TileType, dtype_name
from turbine.kernel.trace.validity import ALWAYS, Valid

Meaning = Callable[..., Any]
# Types in the signatures of ops.
Operand = Tile | IndexExpr | float
Size = int | IndexExpr
Shape = Size | Sequence[Size]
# Infers the type of the result from the types of tiles and the other arguments.
Infer = Callable[..., TileType | None]


@dataclass(frozen=True, eq=False)
class Op:
    """An op: call it in a kernel."""

    name: str
    meaning: Meaning
    call: Callable[..., Any]
    __signature__: inspect.Signature  # of a call, as help() and editors show it
    kind: str = "special"  # "pointwise" ops have rules of one form
    signature: inspect.Signature = field(init=False)  # of the meaning

    def __post_init__(self) -> None:
        object.__setattr__(self, "signature", inspect.signature(self.meaning))
        # help() shows the signature of functions only.
        takes = ", ".join(_parameter_texts(self.__signature__))
        doc = f"{self.name}({takes})\n\n{inspect.getdoc(self.meaning)}"
        object.__setattr__(self, "__doc__", doc)
        object.__setattr__(self, "__name__", self.name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Add the op to the traced kernel."""
        tracer.current(f"tkl.{self.name}")
        takes = self.__signature__
        try:
            takes.bind(*args, **keywords)
        except TypeError as error:
            raise errors.KernelError(
                f"invalid call of tkl.{self.name}: {error}",
                where=user_line(),
                hint=f"it takes {', '.join(_parameter_texts(takes))}",
            ) from error
        return self.call(*args, **keywords)

    def __repr__(self) -> str:
        return f"tkl.{self.name}"

    def add(self, *args: Any, type: TileType, valid: Valid = ALWAYS, **keywords: Any) -> Tile:
        """Add a node of the op; return its tile."""
        tile = Tile(self.record(*args, **keywords), type, valid)
        watch = tracer.current(f"tkl.{self.name}").watch
        if watch is not None:
            watch(self.name, tile)
        return tile

    def record(self, *args: Any, **keywords: Any) -> Any:
        """Add a node of the op; tiles and buffers are replaced by their nodes."""
        trace = tracer.current(f"tkl.{self.name}")
        nodes = _nodes(args)
        return trace.add(self, nodes, {name: _nodes(value) for name, value in keywords.items()})


def _parameter_texts(signature: inspect.Signature) -> Iterator[str]:
    """Parameters as help() shows them: no types, and "*" before keyword-only ones."""
    is_keyword_only = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            yield "*"
        name = f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name
        default = (
            f"tkl.{dtype_name(one.default)}" if isinstance(one.default, Dtype) else one.default
        )
        yield name if one.default is one.empty else f"{name}={default}"


def _nodes(value: Any) -> Any:
    if isinstance(value, (Tile, Buffer)):
        return value.node
    if isinstance(value, (tuple, list)):
        return tuple(map(_nodes, value))
    return value


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The positional arguments of a node."""
    return tuple(node.args)


def options(node: fx.Node) -> dict[str, Any]:
    """The keyword arguments of a node: the bounds and masks of its valid lanes."""
    return dict(node.kwargs)


def op(call: Callable[..., Any]) -> Callable[[Meaning], Op]:
    """Declare an op that is traced by `call`, whose first argument is the op."""

    def declare(meaning: Meaning) -> Op:
        name = meaning.__name__.rstrip("_")
        declared: Op
        own = inspect.signature(call)
        takes = own.replace(parameters=list(own.parameters.values())[1:])
        declared = Op(name, meaning, lambda *args, **kwargs: call(declared, *args, **kwargs), takes)
        return declared

    return declare


def declare_internal(meaning: Meaning) -> Op:
    """Declare an op that functions of the language record, and users do not call."""
    return op(_not_called)(meaning)


def _not_called(op: Op, *_: Any) -> Any:
    raise AssertionError(f"{op.name} is recorded, not called")


def common_dtype(operands: Sequence[Any], what: str) -> Dtype:
    """Promote as PyTorch does: by the tiles; Python numbers only raise the kind."""
    strong = [operand.dtype for operand in operands if isinstance(operand, Tile)]
    weak = [
        _WEAK[check_operand(operand, what)] for operand in operands if not isinstance(operand, Tile)
    ]
    try:
        common = reduce(_promote, strong) if strong else max(weak, key=_rank)
    except RuntimeError as error:
        listed = " and ".join(dict.fromkeys(map(dtype_name, strong)))
        raise errors.KernelError(
            f"{_call_text(what)} of {listed}: they have no type in common",
            where=user_line(),
            hint="convert one with x.to(tkl.f32) or the like",
        ) from error
    highest = max([common, *weak], key=_rank)
    return common if _rank(highest) == _rank(common) else highest


_WEAK = {"bool": BOOL, "int": I64, "float": F32}
_RANKS = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def _rank(dtype: Dtype) -> int:
    return _RANKS[dtype.kind]


def check_operand(value: Any, what: str) -> str:
    """The kind of a Python number; raises for values that no op takes."""
    kinds = {bool: "bool", int: "int", float: "float", IndexExpr: "int"}
    for kind, name in kinds.items():
        if isinstance(value, kind):
            return name
    raise errors.KernelError(
        f"{_call_text(what)} of {describe(value)}",
        where=user_line(),
        hint="operands are tiles and numbers; read a buffer with tkl.load, and index the results "
        "of a loop, body[0]",
    )


def _call_text(what: str) -> str:
    return what if what.startswith("tkl.") else f"tkl.{what}"


def describe(value: Any) -> str:
    """Describe an argument for a message."""
    if isinstance(value, torch.Tensor):
        return "a torch.Tensor that is not an argument of the kernel"
    if isinstance(value, (tuple, list)):
        return f"several values, a {type(value).__name__} of {len(value)}"
    return repr(value) if isinstance(value, (Buffer, Traced)) else f"a {type(value).__name__}"


def _promote(one: Dtype, other: Dtype) -> Dtype:
    return one if one == other else dtypes.of_torch(torch.promote_types(one.torch, other.torch))


def broadcast_shapes(types: Sequence[TileType]) -> tuple[Expr, ...]:
    """The shape that tiles are broadcast to, aligned at their last axes."""
    rank = max(type.rank for type in types)
    padded = [(ONE,) * (rank - type.rank) + type.shape for type in types]
    return tuple(_common_size(sizes, types) for sizes in zip(*padded, strict=True))


def _common_size(sizes: Sequence[Expr], types: Sequence[TileType]) -> Expr:
    found = list(dict.fromkeys(size for size in sizes if size != ONE))
    if len(found) > 1:
        raise errors.KernelError(
            f"cannot broadcast tiles of {' and '.join(map(str, types))}: "
            f"{' and '.join(map(str, found))} are different sizes",
            where=user_line(),
            hint="add axes with x[:, None], use tkl.reshape, or load tiles of one shape",
        )
    return found[0] if found else ONE


def shape_of(shape: Any, what: str) -> tuple[Expr, ...]:
    """Check a shape and convert it to expressions."""
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    for size in sizes:
        if not isinstance(size, (int, IndexExpr)) or isinstance(size, bool):
            raise errors.KernelError(
                f"{what}: a size is {describe(size)}",
                where=user_line(),
                hint="sizes are numbers and symbols, which are known before the kernel runs",
            )
        if isinstance(size, int) and size < 0:
            raise errors.KernelError(
                f"{what}: a size is {size}", where=user_line(), hint="sizes are not negative"
            )
        counters = [s for s in expr_of(size).symbols if s.kind != "size"]
        if counters:
            raise errors.KernelError(
                f"{what}: the size {size} differs from program to program",
                where=user_line(),
                hint="use the largest size; elements outside a buffer are masked off",
            )
    return tuple(map(expr_of, sizes))
