"""Replace torch ops by formulas of vector_math, which are faster than IREE's code."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler.ir import Location, Module, Operation, RankedTensorType, Value

from turbine.mlir import rewrites, torch_values, vector_math
from turbine.mlir.writer import Value as Number
from turbine.mlir.writer import Writer

FORMULAS = {
    f"torch.aten.{name}": name
    for name in ("exp", "exp2", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sin", "cos")
}
_ELEMENT = "f32"


def use_formulas(module: Module) -> None:
    """Replace these ops on f32 by elementwise loops, in place; IREE fuses the loops."""
    rewrites.rewrite(module, [_expand])


def _expand(op: Operation) -> Sequence[Value] | None:
    if op.name not in FORMULAS:
        return None
    x, result = op.operands[0], op.results[0]
    parts = [torch_values.tensor_parts(value.type) for value in (x, result)]
    if any(part is None or part[1] != _ELEMENT for part in parts):
        return None
    operand = torch_values.convert(x, torch_values.builtin_type(x.type), op.location)
    of = RankedTensorType(operand.type)
    text = Module.parse(_text(FORMULAS[op.name], of, op.location), op.context)
    (y,) = rewrites.splice(text.body.operations[0].operation, [operand], op)
    return [torch_values.convert(y, result.type, op.location)]


def _text(name: str, of: RankedTensorType, location: Location) -> str:
    """A module with one function, whose body is the loop."""
    axes = ", ".join(f"i{axis}" for axis in range(of.rank))
    dynamic = [axis for axis in range(of.rank) if of.is_dynamic_dim(axis)]
    sizes = [
        f"%axis{axis} = arith.constant {axis} : index\n"
        f"%size{axis} = tensor.dim %x, %axis{axis} : {of}"
        for axis in dynamic
    ]
    places = f"affine_map<({axes}) -> ({axes})>"
    kinds = ", ".join(['"parallel"'] * of.rank)
    writer = Writer()
    result = vector_math.FUNCTIONS[name](writer, Number("%element", _ELEMENT))
    lines = [
        f"func.func @apply(%x: {of}) -> {of} {{",
        *sizes,
        f"%empty = tensor.empty({', '.join(f'%size{axis}' for axis in dynamic)}) : {of}",
        f"%y = linalg.generic {{indexing_maps = [{places}, {places}], iterator_types = [{kinds}]}}",
        f"ins(%x : {of}) outs(%empty : {of}) {{",
        f"^bb0(%element: {_ELEMENT}, %unused: {_ELEMENT}):",
        *writer.top,
        *writer.lines,
        f"linalg.yield {result} : {_ELEMENT}",
        f"}} -> {of} {location}",
        f"return %y : {of}",
        "}",
    ]
    return "\n".join(lines)
