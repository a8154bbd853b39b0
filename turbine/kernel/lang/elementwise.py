"""Declare elementwise ops: operands are promoted and broadcast first."""

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


# The kinds of elements that an op computes with, and what other kinds become first.
@dataclass(frozen=True)
class Takes:
    """Which elements an op computes with."""

    kinds: frozenset[str]
    default: Dtype | None  # what others become; None: they are refused


NUMBERS = Takes(frozenset({"int", "uint", "float"}), I64)
ANYTHING = Takes(frozenset({"bool", "int", "uint", "float"}), None)
FLOATS = Takes(frozenset({"float"}), F32)
INTEGERS = Takes(frozenset({"bool", "int", "uint"}), None)


def pointwise(takes: Takes = NUMBERS, gives: Dtype | None = None) -> Callable[[Meaning], Op]:
    """Declare an op on each element; operands are broadcast and become one type first."""

    def declare(meaning: Meaning) -> Op:
        of_meaning = inspect.signature(meaning)
        operands = [p.replace(annotation="Operand") for p in of_meaning.parameters.values()]
        takes_tiles = of_meaning.replace(parameters=operands, return_annotation="Tile")

        def call(*args: Any, **keywords: Any) -> Tile:
            bound = made.signature.bind(*args, **keywords)
            operands = [bound.arguments[name] for name in of_meaning.parameters]
            return apply(made, operands, takes, gives)

        made = Op(meaning.__name__.rstrip("_"), meaning, call, takes_tiles, "pointwise")
        return made

    return declare


def apply(made: Op, operands: Sequence[Any], takes: Takes, gives: Dtype | None) -> Tile:
    """A node of a pointwise op, whose operands become one type and one shape."""
    dtype = require_common_dtype(made, operands, takes)
    tiles = [as_tile(operand, dtype, made.name) for operand in operands]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return made.add(*tiles, type=TileType(shape, gives or dtype), valid=valid)


def require_common_dtype(made: Op, operands: Sequence[Any], takes: Takes) -> Dtype:
    """The type that operands have in common, if the op is one for it."""
    dtype = common_dtype(operands, made.name)
    if dtype.kind in takes.kinds:
        return dtype
    if takes.default is None or dtype.kind == "complex":
        raise errors.KernelError(
            f"tkl.{made.name} of {dtype_name(dtype)}: it takes {', '.join(sorted(takes.kinds))}",
            where=user_line(),
            hint="convert with x.to(tkl.i32) or the like",
        )
    return takes.default


def align_valid(tile: Tile, rank: int) -> Valid:
    """Which lanes of a tile hold a value, for one of more axes that it is broadcast to."""
    offset = rank - tile.type.rank
    if not offset or not tile.valid:
        return tile.valid
    masks = tuple(new_axes(mask, offset) for mask in tile.valid.masks)
    return Valid(tile.valid.move_bounds(lambda axis: axis + offset), masks)
