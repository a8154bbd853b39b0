"""Declare elementwise ops, whose operands are promoted and broadcast."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turbine import errors
from turbine.dtypes import Dtype
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.shapes import new_axes
from turbine.kernel.trace.op import Meaning, Op, broadcast_shapes, common_dtype
from turbine.kernel.trace.tracer import Tile, user_line
from turbine.kernel.trace.types import F32, I64, TileType, dtype_name
from turbine.kernel.trace.validity import Valid, both


@dataclass(frozen=True)
class Takes:
    """The kinds of dtypes that an op takes."""

    kinds: frozenset[str]
    default: Dtype | None  # other kinds are converted to it; None: they are rejected


NUMBERS = Takes(frozenset({"int", "uint", "float"}), I64)
ANYTHING = Takes(frozenset({"bool", "int", "uint", "float"}), None)
FLOATS = Takes(frozenset({"float"}), F32)
INTEGERS = Takes(frozenset({"bool", "int", "uint"}), None)


def pointwise(takes: Takes = NUMBERS, gives: Dtype | None = None) -> Callable[[Meaning], Op]:
    """Declare an elementwise op."""

    def declare(meaning: Meaning) -> Op:
        of_meaning = inspect.signature(meaning)
        operands = [p.replace(annotation="Operand") for p in of_meaning.parameters.values()]
        takes_tiles = of_meaning.replace(parameters=operands, return_annotation="Tile")

        def call(*args: Any, **keywords: Any) -> Tile:
            bound = op.signature.bind(*args, **keywords)
            operands = [bound.arguments[name] for name in of_meaning.parameters]
            return apply(op, operands, takes, gives)

        op = Op(meaning.__name__.rstrip("_"), meaning, call, takes_tiles, "pointwise")
        return op

    return declare


def apply(op: Op, operands: Sequence[Any], takes: Takes, gives: Dtype | None) -> Tile:
    """Add an elementwise op after promoting and broadcasting its operands."""
    dtype = require_common_dtype(op, operands, takes)
    tiles = [as_tile(operand, dtype, op.name) for operand in operands]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return op.add(*tiles, type=TileType(shape, gives or dtype), valid=valid)


def require_common_dtype(op: Op, operands: Sequence[Any], takes: Takes) -> Dtype:
    """Promote operands; raise if the op does not take the dtype."""
    dtype = common_dtype(operands, op.name)
    if dtype.kind in takes.kinds:
        return dtype
    if takes.default is None or dtype.kind == "complex":
        raise errors.KernelError(
            f"tkl.{op.name} of {dtype_name(dtype)}: it takes {', '.join(sorted(takes.kinds))}",
            where=user_line(),
            hint="convert with x.to(tkl.i32) or the like",
        )
    return takes.default


def align_valid(tile: Tile, rank: int) -> Valid:
    """The valid lanes of a tile after it is broadcast to a rank."""
    offset = rank - tile.type.rank
    if not offset or not tile.valid:
        return tile.valid
    masks = tuple(new_axes(mask, offset) for mask in tile.valid.masks)
    return Valid(tile.valid.move_bounds(lambda axis: axis + offset), masks)
