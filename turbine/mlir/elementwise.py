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
} | {"torch.aten.pow.Tensor_Tensor": "pow"}
_ELEMENT = "f32"


def use_formulas(module: Module) -> None:
    """Replace these ops on f32 by elementwise loops, in place; IREE fuses the loops."""
    rewrites.rewrite(module, [_expand])


def _expand(op: Operation) -> Sequence[Value] | None:
    if op.name not in FORMULAS:
        return None
    result = op.results[0]
    parts = [torch_values.tensor_parts(value.type) for value in (*op.operands, result)]
    if any(part is None or part[1] != _ELEMENT for part in parts):
        return None
    operands = [
        torch_values.convert(x, torch_values.builtin_type(x.type), op.location) for x in op.operands
    ]
    of = RankedTensorType(operands[0].type)
    if any(operand.type != of for operand in operands):
        return None
    text = Module.parse(_text(FORMULAS[op.name], len(operands), of, op.location), op.context)
    (y,) = rewrites.splice(text.body.operations[0].operation, operands, op)
    return [torch_values.convert(y, result.type, op.location)]


def _text(name: str, count: int, of: RankedTensorType, location: Location) -> str:
    """A module with one function of `count` operands, whose body is the loop."""
    axes = ", ".join(f"i{axis}" for axis in range(of.rank))
    dynamic = [axis for axis in range(of.rank) if of.is_dynamic_dim(axis)]
    sizes = [
        f"%axis{axis} = arith.constant {axis} : index\n"
        f"%size{axis} = tensor.dim %x0, %axis{axis} : {of}"
        for axis in dynamic
    ]
    places = ", ".join([f"affine_map<({axes}) -> ({axes})>"] * (count + 1))
    kinds = ", ".join(['"parallel"'] * of.rank)
    tensors = [f"%x{index}" for index in range(count)]
    elements = [Number(f"%element{index}", _ELEMENT) for index in range(count)]
    writer = Writer()
    result = vector_math.FUNCTIONS[name](writer, *elements)
    lines = [
        f"func.func @apply({', '.join(f'{x}: {of}' for x in tensors)}) -> {of} {{",
        *sizes,
        f"%empty = tensor.empty({', '.join(f'%size{axis}' for axis in dynamic)}) : {of}",
        f"%y = linalg.generic {{indexing_maps = [{places}], iterator_types = [{kinds}]}}",
        f"ins({', '.join(tensors)} : {', '.join([str(of)] * count)}) outs(%empty : {of}) {{",
        f"^bb0({', '.join(f'{x}: {_ELEMENT}' for x in elements)}, %unused: {_ELEMENT}):",
        *writer.top,
        *writer.lines,
        f"linalg.yield {result} : {_ELEMENT}",
        f"}} -> {of} {location}",
        f"return %y : {of}",
        "}",
    ]
    return "\n".join(lines)
