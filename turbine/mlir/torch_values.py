"""Cross between torch-dialect tensors and builtin ones, and check values at run time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from iree.compiler.ir import (
    Block,
    InsertionPoint,
    IntegerAttr,
    IntegerType,
    Location,
    MLIRError,
    Operation,
    RankedTensorType,
    StringAttr,
    Type,
    Value,
)

from turbine import errors
from turbine.mlir import flow, function
from turbine.mlir.matchers import operation_of

# Fills a block; returns the values it yields.
Body = Callable[[Block], Sequence[Value]]


def from_builtin(value: Value, to: Type, location: Location) -> Value:
    """A builtin tensor as a torch value tensor."""
    return Operation.create(
        "torch_c.from_builtin_tensor", results=[to], operands=[value], loc=location
    ).result


def to_builtin(value: Value, to: Type, location: Location) -> Value:
    """A torch value tensor as a builtin tensor."""
    return Operation.create(
        "torch_c.to_builtin_tensor", results=[to], operands=[value], loc=location
    ).result


def branch(
    condition: Value, results: Sequence[Type], bodies: Sequence[Body], location: Location
) -> list[Value]:
    """The results of the first body if a 0-d bool tensor or a bool is true, else of the second."""
    with location:
        truth = _truth(condition)
        operation = Operation.create(
            "torch.prim.If", results=list(results), operands=[truth], regions=2
        )
        for region, body in zip(operation.regions, bodies, strict=True):
            block = region.blocks.append()
            values = body(block)
            with InsertionPoint(block):
                given = [convert(v, of, location) for v, of in zip(values, results, strict=True)]
                Operation.create("torch.prim.If.yield", operands=given)
    return list(operation.results)


# Fills a block of a loop from torch values: its state, or a row's index and its state.
Condition = Callable[[Block, Sequence[Value]], Value]
Turn = Callable[[Block, Sequence[Value]], Sequence[Value]]
RowTurn = Callable[[Block, Value, Sequence[Value]], Sequence[Value]]


def while_loop(
    condition: Condition, turn: Turn, state: Sequence[Value], location: Location
) -> list[Value]:
    """The state after turns as long as a 0-d bool tensor, or a bool, is true."""
    with location:
        carried = _Carried(state)
        operation = carried.loop("scf.while", [], [[], []])
        before, after = (region.blocks[0] for region in operation.regions)
        with InsertionPoint(before):
            truth = condition(before, carried.read(before.arguments))
            going_on = convert(_truth(truth), Type.parse("i1"), location)
            Operation.create("scf.condition", operands=[going_on, *before.arguments])
        with InsertionPoint(after):
            new = turn(after, carried.read(after.arguments))
            Operation.create("scf.yield", operands=carried.write(new))
        return carried.read(operation.results)


def row_loop(
    count: Value, turn: RowTurn, state: Sequence[Value], location: Location
) -> list[Value]:
    """The state after a turn for each number below a torch int."""
    with location:
        carried = _Carried(state)
        bounds = [_constant_index(0), to_index(count), _constant_index(1)]
        operation = carried.loop("scf.for", bounds, [[Type.parse("index")]])
        block = operation.regions[0].blocks[0]
        with InsertionPoint(block):
            row, *given = block.arguments
            new = turn(block, _from_index(row), carried.read(given))
            Operation.create("scf.yield", operands=carried.write(new))
        return carried.read(operation.results)


# Note [Carried tensors]
# IREE 3.13 puts all tensors that a turn makes in one allocation, and loses the offsets of some on
# the way to the next turn if sizes are dynamic. A barrier behind each keeps them apart. It hides
# sizes, so tensors get those that they have before the loop.
class _Carried:
    """The values that a loop carries from turn to turn: torch values, carried as builtin ones."""

    def __init__(self, state: Sequence[Value]) -> None:
        location = Location.current
        self.types = [value.type for value in state]
        self.initial = [convert(value, builtin_type(value.type), location) for value in state]
        self.inside = [value.type for value in self.initial]
        tensors = [value for value in self.initial if isinstance(value.type, RankedTensorType)]
        self.sizes = {value: flow.unknown_sizes(value, location) for value in tensors}
        self.are_apart = len(tensors) > 1 and any(self.sizes.values())
        self.start = self._keep_apart(self.initial)

    def loop(
        self, name: str, bounds: Sequence[Value], counters: Sequence[Sequence[Type]]
    ) -> Operation:
        """A loop; each region has a block with its counters and the state."""
        operation = Operation.create(
            name, results=self.inside, operands=[*bounds, *self.start], regions=len(counters)
        )
        for region, own in zip(operation.regions, counters, strict=True):
            types = [*own, *self.inside]
            region.blocks.append(*types, arg_locs=[Location.current] * len(types))
        return operation

    def read(self, values: Sequence[Value]) -> list[Value]:
        """The state as torch values."""
        return _converted(self._with_sizes(values), self.types)

    def write(self, values: Sequence[Value]) -> list[Value]:
        """The state for the next turn."""
        return self._keep_apart(_converted(values, self.inside))

    def _keep_apart(self, values: Sequence[Value]) -> list[Value]:
        if not self.are_apart:
            return [*values]
        pairs = zip(values, self.initial, strict=True)
        return self._with_sizes(
            [flow.keep_apart(v, Location.current) if of in self.sizes else v for v, of in pairs]
        )

    def _with_sizes(self, values: Sequence[Value]) -> list[Value]:
        pairs = [(v, self.sizes.get(of)) for v, of in zip(values, self.initial, strict=True)]
        return [flow.tie_sizes(v, sizes, Location.current) if sizes else v for v, sizes in pairs]


def _converted(values: Iterable[Value], types: Sequence[Type]) -> list[Value]:
    location = Location.current
    return [convert(value, of, location) for value, of in zip(values, types, strict=True)]


def _constant_index(value: int) -> Value:
    of = Type.parse("index")
    attributes = {"value": IntegerAttr.get(of, value)}
    return Operation.create("arith.constant", results=[of], attributes=attributes).result


def to_index(number: Value) -> Value:
    """A torch int as an index."""
    wide = convert(number, Type.parse("i64"), Location.current)
    of = Type.parse("index")
    return Operation.create("arith.index_cast", results=[of], operands=[wide]).result


def _from_index(index: Value) -> Value:
    wide = Operation.create("arith.index_cast", results=[Type.parse("i64")], operands=[index])
    return convert(wide.result, Type.parse("!torch.int"), Location.current)


def number(value: int) -> Value:
    """A constant torch int."""
    attributes = {"value": IntegerAttr.get(IntegerType.get_signless(64), value)}
    of = Type.parse("!torch.int")
    return Operation.create("torch.constant.int", results=[of], attributes=attributes).result


def _truth(condition: Value) -> Value:
    of = Type.parse("!torch.bool")
    if condition.type == of:
        return condition
    return Operation.create("torch.aten.Bool.Tensor", results=[of], operands=[condition]).result


def check(condition: Value, message: str, location: Location) -> None:
    """Fail at run time with a message unless a 0-d bool tensor is true."""
    with location:
        truth = _truth(condition)
        attributes = {"message": StringAttr.get(message)}
        Operation.create("torch.runtime.assert", operands=[truth], attributes=attributes)


def convert(value: Value, to: Type, location: Location) -> Value:
    """A value cast to an equivalent type: torch or builtin, with static or dynamic sizes."""
    if value.type == to:
        return value
    converted = _as_builtin(value, location)
    for name, result in _steps(converted.type, to):
        operation = Operation.create(name, results=[result], operands=[converted], loc=location)
        converted = operation.result
        try:
            operation.verify()
        except MLIRError as error:
            raise _misfit(value.type, to, location) from error
    if converted.type != to:
        raise _misfit(value.type, to, location)
    return converted


def _misfit(source: Type, to: Type, location: Location) -> errors.TransformError:
    where = function.source_line(location)
    return errors.TransformError(f"a {source} cannot be used as a {to}", where=where)


def _as_builtin(value: Value, location: Location) -> Value:
    source = str(value.type)
    if source in _SCALARS:
        name, builtin = _SCALARS[source]
        return Operation.create(
            f"torch_c.to_{name}", results=[Type.parse(builtin)], operands=[value], loc=location
        ).result
    if not source.startswith("!torch.vtensor<["):
        return value
    return to_builtin(value, builtin_type(value.type), location)


# Torch scalars: the ending of their conversions, and the builtin type.
_SCALARS = {
    "!torch.int": ("i64", "i64"),
    "!torch.float": ("f64", "f64"),
    "!torch.bool": ("i1", "i1"),
}


def _steps(source: Type, to: Type) -> Iterator[tuple[str, Type]]:
    """The ops that convert a builtin type to another, with their result types."""
    if str(to) in _SCALARS:
        name, builtin = _SCALARS[str(to)]
        if str(source) == builtin:
            yield f"torch_c.from_{name}", to
        return
    is_torch = str(to).startswith("!torch.vtensor<[")
    between = builtin_type(to) if is_torch else to
    if source != between:
        yield "tensor.cast", between
    if is_torch:
        yield "torch_c.from_builtin_tensor", to


def builtin_type(of: Type) -> Type:
    """The builtin type of a torch tensor or scalar; integers lose their sign."""
    if str(of) in _SCALARS:
        return Type.parse(_SCALARS[str(of)][1])
    parts = tensor_parts(of)
    if parts is None:
        return of
    signless = re.sub(r"^[su]i(?=\d)", "i", parts[1])
    dims = "".join(f"{size}x" for size in parts[0])
    return Type.parse(f"tensor<{dims}{signless}>")


def tensor_parts(of: Type) -> tuple[list[str], str] | None:
    """The sizes of a torch tensor, "?" for a dynamic one, and its element type."""
    text = str(of)
    if not text.startswith("!torch.vtensor<["):
        return None
    sizes, _, element = text.removeprefix("!torch.vtensor<[").removesuffix(">").partition("],")
    return [size for size in sizes.split(",") if size], element


def literal(value: Value) -> Any:
    """The Python value of a constant in the IR; other values are returned unchanged."""
    op = operation_of(value)
    if op is None:
        return value
    if op.name == "torch.prim.ListConstruct":
        return [literal(one) for one in op.operands]
    if op.name == "torch.derefine":
        return literal(op.operands[0])
    if op.name == "torch.constant.none":
        return None
    return op.attributes["value"].value if op.name in _CONSTANTS else value


_CONSTANTS = {f"torch.constant.{kind}" for kind in ("int", "float", "bool", "str")}


def none(location: Location) -> Value:
    """The None of the torch dialect."""
    of = Type.parse("!torch.none", location.context)
    return Operation.create("torch.constant.none", results=[of], loc=location).result
