"""Apply a function of vector_math to the elements of a tensor."""

from __future__ import annotations

from iree.compiler.ir import InsertionPoint, Location, Module, RankedTensorType, Value

from turbine.mlir import vector_math
from turbine.mlir.writer import Value as Number
from turbine.mlir.writer import Writer


def apply(name: str, x: Value, location: Location) -> Value:
    """Add a loop over the elements at the insertion point; IREE fuses it with other ops."""
    module = Module.parse(_text(name, RankedTensorType(x.type), location), location.context)
    (body,) = module.body.operations[0].regions[0]
    body.arguments[0].replace_all_uses_with(x)
    *ops, end = body.operations
    result = end.operands[0]
    for op in ops:
        op.detach_from_parent()
        InsertionPoint.current.insert(op)
    return result


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
    writer, element = Writer(), str(of.element_type)
    result = vector_math.FUNCTIONS[name](writer, Number("%element", element))
    lines = [
        f"func.func @apply(%x: {of}) -> {of} {{",
        *sizes,
        f"%empty = tensor.empty({', '.join(f'%size{axis}' for axis in dynamic)}) : {of}",
        f"%y = linalg.generic {{indexing_maps = [{places}, {places}], iterator_types = [{kinds}]}}",
        f"ins(%x : {of}) outs(%empty : {of}) {{",
        f"^bb0(%element: {element}, %unused: {element}):",
        *writer.top,
        *writer.lines,
        f"linalg.yield {result} : {element}",
        f"}} -> {of} {location}",
        f"return %y : {of}",
        "}",
    ]
    return "\n".join(lines)
