"""Emit matmuls and row lookups with packed weights, without unpacking them in memory.

Note [Products by digits]
A weight is an integer of 4 or 8 bits times the scale of its group. Converting each weight to float
takes longer than loading it. So the other operand is converted to integers instead, once: each row
is divided by its largest magnitude and written in three digits of base 256. Digits times weights
are dot products of bytes, which are exact and for which CPUs have instructions; the sum of a
group is then scaled as a float. The error is that of rounding a row to 23 bits of its largest
magnitude; a row with inf or nan becomes nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from iree.compiler.dialects import arith
from iree.compiler.ir import (
    F32Type,
    FlatSymbolRefAttr,
    Location,
    Module,
    Operation,
    SymbolTable,
    Value,
)

from turbine import dtypes
from turbine.mlir import constants
from turbine.mlir.grouped_product_text import (
    BY_BLOCKS,
    BY_DIGITS,
    BY_FLOATS,
    CHOOSE,
    MULTIPLY_VECTOR,
    ROWS,
    START,
    UNPACK,
    UNPACK_VECTOR,
)
from turbine.packed_weights import Grouping

# Bytes of weights multiplied at once.
_LANES = 16
# With more weights in a group, sums of products of bytes may overflow 32 bits.
_LONGEST = 1 << 18
# Outputs that one task computes, and that are unpacked together for many rows.
_TILE = 32
_BLOCK = 512
# Up to this many rows, unpacking does not pay.
_FEW_ROWS = 32


Size = int | None  # None if dynamic


@dataclass(frozen=True)
class Call:
    """A callee and its operands: an operand, a packed weight, its scales, a factor."""

    module: Module
    operands: Sequence[Value]  # builtin tensors
    factor: float
    location: Location

    def emit(self, name: str, text: str, shape: Sequence[Size]) -> Value:
        """Call a function by its name; its text is added to the module on the first call."""
        if name not in SymbolTable(self.module.operation):
            # Held by a name: its ops are only lent until they are detached.
            parsed = Module.parse(text, self.module.context)
            for operation in list(parsed.body.operations):
                operation.detach_from_parent()
                self.module.body.append(operation)
        result = constants.tensor_type(shape, dtypes.from_torch_name("float32"))
        factor = arith.ConstantOp(F32Type.get(), self.factor, loc=self.location).result
        attributes = {"callee": FlatSymbolRefAttr.get(name)}
        return Operation.create(
            "util.call",
            [result],
            [*self.operands, factor],
            attributes=attributes,
            loc=self.location,
        ).result


def product(call: Call, packed: Grouping, rows: Size, *, by_vectors: bool) -> Value:
    """[rows, columns] times the weight; `by_vectors` allows code that only CPUs can run."""
    way = "by_digits" if by_vectors and suits_digits(packed) else "by_floats"
    way = "by_blocks" if rows is not None and rows > _FEW_ROWS else way
    name = f"product_{way}_{_text(rows)}x{_name(packed)}".replace("?", "any")
    return call.emit(name, product_text(name, way, packed, rows), [rows, packed.outputs])


def rows(call: Call, packed: Grouping, shape: Sequence[Size]) -> Value:
    """The weight's rows at an index tensor of this shape."""
    name = f"rows_{'x'.join(map(_text, shape))}_of_{_name(packed)}".replace("?", "any")
    return call.emit(name, rows_text(name, packed, shape), [*shape, packed.columns])


def suits_digits(packed: Grouping) -> bool:
    """Whether groups fill vectors, and their sums fit."""
    return packed.group_bytes % _LANES == 0 and packed.group_size <= _LONGEST


def _name(packed: Grouping) -> str:
    """A part of function names that is unique for a packing."""
    return f"{packed.outputs}x{packed.columns}_by_{packed.group_size}_of_{packed.bits}_bits"


WAYS = {"by_digits": BY_DIGITS, "by_floats": BY_FLOATS, "by_blocks": BY_BLOCKS}


def product_text(name: str, way: str, packed: Grouping, rows: Size) -> str:
    """Define the function of a product, and the functions it calls."""
    groups, parts = packed.groups, 8 // packed.bits
    block = min(_BLOCK, packed.outputs)
    values = {
        "x": _type("tensor", [rows, packed.columns]),
        "y": _type("tensor", [rows, packed.outputs]),
        "padded": _type("tensor", [rows, packed.padded]),
        "row": _type("tensor", [rows]),
        "digits": _type("tensor", [rows, groups, 3, packed.group_size], "i8"),
        "weights": _type("tensor", [block, groups, parts, packed.group_bytes]),
        "products": _type("tensor", [rows, block]),
        "x_memory": _type("memref", [None, groups, 3, parts, packed.group_bytes], "i8"),
        "w_memory": _type("memref", packed.packed_shape, "i8"),
        "s_memory": _type("memref", packed.scales_shape, "f16"),
        "y_memory": _type("memref", [None, packed.outputs]),
        "rows": _text(rows),
        "count": "%rows" if rows is None else rows,
        "sized": "%rows" if rows is None else "",
        "dynamic": "{%rows}" if rows is None else "",
        "columns": packed.padded,
        "padding": packed.padded - packed.columns,
        "few_rows": _FEW_ROWS,
        "lanes": _LANES,
        "tile": _TILE,
        "tiles": -(-packed.outputs // _TILE),
        "block": block,
        "last_block": packed.outputs - block,
        "multiply": _multiply(packed.bits),
        "start": START,
    }
    if rows is not None:
        return _fill(WAYS[way], packed, function=name, **values)
    few = _fill(WAYS[way], packed, function=f"{name}_few", **values)
    many = _fill(BY_BLOCKS, packed, function=f"{name}_many", **values)
    return few + many + _fill(CHOOSE, packed, name=name, **values)


def rows_text(name: str, packed: Grouping, shape: Sequence[Size]) -> str:
    """Define the function of a row lookup."""
    indices = _type("tensor", shape, "i64")
    dynamic = [axis for axis, size in enumerate(shape) if size is None]
    axes = [f"i{axis}" for axis in range(len(shape))]
    return _fill(
        ROWS,
        packed,
        name=name,
        indices=indices,
        result=_type("tensor", [*shape, packed.columns]),
        dims="\n".join(
            f"%axis{a} = arith.constant {a} : index\n"
            f"%size{a} = tensor.dim %indices, %axis{a} : {indices}"
            for a in dynamic
        ),
        sized=", ".join(f"%size{a}" for a in dynamic),
        axes=", ".join(axes),
        all_axes=", ".join([*axes, "c"]),
        parallel=", ".join(['"parallel"'] * (len(shape) + 1)),
        rank=len(shape),
    )


def _fill(template: str, packed: Grouping, **values: str | int) -> str:
    """A template filled in. Values may be templates themselves."""
    values |= {
        "w": _type("tensor", packed.packed_shape, "i8"),
        "s": _type("tensor", packed.scales_shape, "f16"),
        "outputs": packed.outputs,
        "groups": packed.groups,
        "size": packed.group_size,
        "bytes": packed.group_bytes,
        "bits": packed.bits,
        "parts": 8 // packed.bits,
        "unused_bits": 8 - packed.bits,
        "unpack": UNPACK,
    }
    return Template(Template(template).safe_substitute(values)).substitute(values)


def _type(kind: str, sizes: Sequence[Size], element: str = "f32") -> str:
    return f"{kind}<{''.join(f'{_text(size)}x' for size in sizes)}{element}>"


def _text(size: Size) -> str:
    return "?" if size is None else str(size)


def _multiply(bits: int) -> str:
    """The innermost loop of BY_DIGITS: each digit's sums grow by its digits times the weights."""
    lines = []
    sums = ["%sum0", "%sum1", "%sum2"]
    for part in range(8 // bits):
        unpack = Template(UNPACK_VECTOR)
        lines.append(unpack.safe_substitute(part=part, left=8 - bits * (part + 1)))
        for digit, before in enumerate(sums):
            sums[digit] = f"%sum{digit}_{part}"
            multiply = Template(MULTIPLY_VECTOR)
            lines.append(multiply.safe_substitute(part=part, digit=digit, before=before))
    lines.append(f"scf.yield {', '.join(sums)} : vector<4xi32>, vector<4xi32>, vector<4xi32>")
    return "\n".join(lines)
