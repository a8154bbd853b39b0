"""Quantize the weights of linear layers by groups: float globals in, packed integers out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy
from numpy.typing import NDArray

from turbine import dtypes, errors, packed_weights
from turbine.dtypes import Dtype
from turbine.mlir import constants, dequantization, parameters, rewrites, torch_values
from turbine.mlir import globals as mlir_globals
from turbine.mlir.ir import Attribute, InsertionPoint, Module, Operation, Type, Value
from turbine.mlir.matchers import (
    FuncOpMatcher,
    GlobalLoadResult,
    GlobalOpResult,
    NamedOpMatcher,
    OpMatchResult,
    Transpose2DMatcher,
    callee,
    globals_of,
    match_children,
    shape,
)
from turbine.mlir.parameters import Parameter
from turbine.mlir.symbols import is_private, symbol_name
from turbine.packed_weights import PARTS, Grouping
from turbine.passes.base import Pass, Values, as_bytes

FLOATS = {row.mlir: row for row in dtypes.TABLE if row.kind == "float" and row.dlpack}
BYTE = dtypes.from_torch_name("int8")
# (op, operand): the contracted axis of that operand, among its last two.
_SUMMED = {
    ("torch.aten.mm", 1): 0,
    ("torch.aten.matmul", 1): 0,
    ("torch.aten.bmm", 1): 0,
    ("torch.aten.addmm", 2): 0,
    ("torch.aten.linear", 1): 1,
}
# Ops that may broadcast a matrix along new leading axes.
_REPEATS = {f"torch.aten.{name}" for name in ("unsqueeze", "expand", "view", "broadcast_to")}
_TO_TORCH = "torch_c.from_builtin_tensor"
# The type of a global and its initial value, if it has one.
Start = tuple[Type, Attribute | None]


@dataclass(frozen=True)
class GroupQuantize(Pass):
    """Quantize linear layers to integers of 4 or 8 bits with a scale for each group.

    Only weights that are used in nothing but `mm`, `addmm`, `linear` or a broadcast `bmm` are
    packed; one that is also an embedding table is not. The format is in Note [Packed groups] of
    turbine/packed_weights.py.
    """

    name = "group-quantize"
    bits: int = 4
    group_size: int = 128

    def __post_init__(self) -> None:
        packed_weights.check(self.bits, self.group_size, errors.TransformError)

    @classmethod
    def parse(cls, text: str) -> GroupQuantize:
        """Parse options: bits=4,group-size=32."""
        valid = [item.name.replace("_", "-") for item in fields(cls)]
        numbers = {}
        for pair in text.split(","):
            name, _, value = pair.partition("=")
            if name not in valid:
                raise errors.TransformError(errors.unknown(f"option of {cls.name}", name, valid))
            if not value.isdecimal():
                raise errors.TransformError(
                    f"--{cls.name}: {name}={value!r} is not a number",
                    hint=f"write --{cls.name}=bits=4,group-size=32",
                )
            numbers[name.replace("-", "_")] = int(value)
        return cls(**numbers)

    def run(self, module: Module) -> None:
        """Replace weights and their reads."""
        layers = list(_layers(module))
        if not layers:
            raise errors.TransformError(
                "no linear layer to quantize",
                hint="weights have to be globals that only products read, here or in the "
                "functions they are passed to",
            )
        initial = [self._initial(layer) for layer in layers]
        _check_names(module, layers)
        for layer, values in zip(layers, initial, strict=True):
            _replace(module, layer, self._group(layer), values)

    def follow(self, module: Module, values: Values) -> Values:
        """Packed weights in place of plain ones."""
        after = dict(values)
        for layer in _layers(module):
            if layer.parameter is not None and layer.parameter in values:
                plain = after.pop(layer.parameter)
                after.update(zip(layer.part_parameters, self._pack(layer, plain), strict=True))
        return after

    def _group(self, layer: _Layer) -> Grouping:
        outputs, columns = layer.shape if layer.summed == 1 else layer.shape[::-1]
        return Grouping.fit(outputs, columns, self.bits, self.group_size)

    def _pack(self, layer: _Layer, weight: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        if not numpy.isfinite(weight.astype(numpy.float64)).all():
            raise errors.TransformError(
                f"cannot quantize {layer.name}: it contains nan or inf",
                hint="replace them in the weight, and export again",
            )
        rows = weight if layer.summed == 1 else weight.T
        return packed_weights.quantize(rows, self._group(layer), weight.dtype)

    def _initial(self, layer: _Layer) -> list[Start]:
        """The initial values of the new globals: parameters for a parameter, else constants."""
        grouping, initial = self._group(layer), layer.weight.initial_value
        kinds = [(grouping.packed_shape, BYTE), (grouping.scales_shape, layer.dtype)]
        with layer.weight.op.location:
            types = [constants.tensor_type(*kind) for kind in kinds]
            if initial is None:
                return [(of, None) for of in types]
            if mlir_globals.is_uninitialized(initial):
                return [(of, mlir_globals.uninitialized_attribute(of)) for of in types]
            if layer.parameter is not None:
                renamed = zip(layer.part_parameters, types, strict=True)
                return [(of, parameters.retype(initial, name, of)) for name, of in renamed]
            parts = self._pack(layer, constants.elements(initial, layer.dtype))
            named = zip(layer.part_names, parts, kinds, strict=True)
            dense = [constants.dense(name, as_bytes(part), *kind) for name, part, kind in named]
            return [(value.type, value) for value in dense]


@dataclass(frozen=True)
class _Layer:
    """A weight that only matmuls use, and the loads of it."""

    weight: GlobalOpResult
    dtype: Dtype
    summed: int  # the contracted axis
    loads: tuple[Operation, ...]

    @property
    def name(self) -> str:
        return self.weight.sym_name

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.type.shape
        return rows, columns

    @property
    def parameter(self) -> Parameter | None:
        initial = self.weight.initial_value
        return None if initial is None else parameters.of(initial)

    @property
    def part_names(self) -> list[str]:
        return [f"{self.name}.{part}" for part in PARTS]

    @property
    def part_parameters(self) -> list[Parameter]:
        parameter = self.parameter
        assert parameter is not None
        return [Parameter(parameter.scope, f"{parameter.key}.{part}") for part in PARTS]


def _layers(module: Module) -> Iterator[_Layer]:
    known, callees = globals_of(module), _callees(module)
    stored = _uses(module, "util.global.store")  # by initializers, if it is not mutable
    for name, loads in _uses(module, "util.global.load").items():
        weight = known.get(name)
        dtype = _weight_dtype(weight)
        if weight is None or dtype is None or name in stored:
            continue
        summed = {axis for load in loads for axis in _contracted_axes(load.result, callees)}
        if summed == {0} or summed == {1}:
            yield _Layer(weight, dtype, summed.pop() or 0, tuple(loads))


def _uses(module: Module, op_name: str) -> dict[str, list[Operation]]:
    matcher: NamedOpMatcher[OpMatchResult] = NamedOpMatcher(op_name)
    found: dict[str, list[Operation]] = {}
    for match in match_children(module, matcher):
        found.setdefault(GlobalLoadResult(match.op).global_ref, []).append(match.op)
    return found


def _callees(module: Module) -> Callees:
    """The private functions: only calls in the module pass their arguments."""
    functions = [match.op for match in match_children(module, FuncOpMatcher())]
    return {symbol_name(op): op for op in functions if is_private(op)}


Callees = Mapping[str, Operation]


def _weight_dtype(weight: GlobalOpResult | None) -> Dtype | None:
    """The dtype of a global that may be a weight: an immutable float matrix."""
    if weight is None or weight.is_mutable:
        return None
    of: Any = weight.type
    is_matrix = str(of).startswith("tensor<") and of.rank == 2 and of.has_static_shape
    is_matrix = is_matrix and 0 not in of.shape
    return FLOATS.get(str(of.element_type)) if is_matrix else None


def _contracted_axes(
    value: Value, callees: Callees, exchanged: bool = False
) -> Iterator[int | None]:
    """The contracted axis for each use of a matrix; None for other uses."""
    for use in value.uses:
        op = use.owner.operation
        inside = _argument(op, use.operand_number, callees)
        if inside is not None:
            # Without the callee: weights are not followed through recursion.
            others = {name: other for name, other in callees.items() if name != callee(op)}
            yield from _contracted_axes(inside, others, exchanged)
        elif op.name == _TO_TORCH or _repeats(op, use.operand_number):
            yield from _contracted_axes(op.result, callees, exchanged)
        elif Transpose2DMatcher()(op) is not None:
            yield from _contracted_axes(op.result, callees, not exchanged)
        else:
            axis = _SUMMED.get((op.name, use.operand_number))
            yield axis if axis is None or not exchanged else 1 - axis


def _argument(op: Operation, operand: int, callees: Callees) -> Value | None:
    """The block argument of the callee for an operand of a call."""
    function = callees.get(callee(op) or "")
    if function is None or not function.regions[0].blocks:
        return None
    argument: Value = function.regions[0].blocks[0].arguments[operand]
    return argument


def _repeats(op: Operation, operand: int) -> bool:
    """Whether an op only adds leading axes to a matrix."""
    if op.name not in _REPEATS or operand != 0:
        return False
    before, after = shape(op.operands[0].type), shape(op.result.type)
    return before is not None and after is not None and before[-2:] == after[-2:]


def _check_names(module: Module, layers: Sequence[_Layer]) -> None:
    known: Mapping[str, object] = globals_of(module)
    named = set(parameters.by_global(module).values())
    for layer in layers:
        new = [name for name in layer.part_names if name in known]
        if layer.parameter is not None:
            new += [name.text for name in layer.part_parameters if name in named]
        if new:
            raise errors.TransformError(
                f"cannot quantize {layer.name}: there is a {new[0]} already",
                hint=f"rename it: the packed weight is {' and '.join(layer.part_names)}",
            )


def _replace(module: Module, layer: _Layer, of: Grouping, initial: Sequence[Start]) -> None:
    """Define the packed globals, and replace loads by packed reads."""
    op = layer.weight.op
    with op.context:
        for name, start in zip(layer.part_names, initial, strict=True):
            mlir_globals.define_before(op, name, *start)
        for load in layer.loads:
            plain = _plain(load, layer, of, initial)
            uses = [use.owner.operation for use in load.result.uses]
            readers = [op for op in uses if op.name == _TO_TORCH]
            for reader in readers:
                rewrites.replace(reader, [plain])
            if len(readers) < len(uses):
                _pass_on(load, plain)
            rewrites.erase_unused(module, [*readers, load])
    op.erase()


def _pass_on(load: Operation, plain: Value) -> None:
    """Pass the unpacked weight to calls."""
    with InsertionPoint(load):
        builtin = torch_values.to_builtin(plain, load.result.type, load.location)
    load.result.replace_all_uses_with(builtin)


def _plain(load: Operation, layer: _Layer, of: Grouping, initial: Sequence[Start]) -> Value:
    """Unpack the weight to a torch tensor, before a load of it."""
    with InsertionPoint(load):
        named = zip(layer.part_names, initial, strict=True)
        packed, scales = (mlir_globals.load(name, t, load.location) for name, (t, _) in named)
        rows = dequantization.dequantize(of, layer.dtype, packed, scales, load.location)
        if layer.summed == 1:
            return rows
        return dequantization.transpose(rows, layer.shape, layer.dtype, load.location)
