"""Sums, products, comparisons, bits and choices, element by element."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.kernel import algebra
from turbine.kernel.op import (
    ANYTHING,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Op,
    Operand,
    Takes,
    align_valid,
    apply,
    as_tile,
    broadcast_shapes,
    common_dtype,
    op,
    pointwise,
    require_common_dtype,
)
from turbine.kernel.tracer import OPERATORS, IndexExpr, Tile, expr_of, user_line
from turbine.kernel.types import BOOL, TileType
from turbine.kernel.validity import both


@pointwise(NUMBERS)
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y; integers wrap around."""
    return torch.add(x, y)


@pointwise(NUMBERS)
def sub(x: Tensor, y: Tensor) -> Tensor:
    """`x - y`."""
    return torch.sub(x, y)


@pointwise(NUMBERS)
def mul(x: Tensor, y: Tensor) -> Tensor:
    """`x * y`."""
    return torch.mul(x, y)


@pointwise(FLOATS)
def truediv(x: Tensor, y: Tensor) -> Tensor:
    """x / y; integers become f32."""
    return torch.div(x, y)


@pointwise(NUMBERS)
def floordiv(x: Tensor, y: Tensor) -> Tensor:
    """x / y rounded down; an integer divided by zero is zero."""
    return _guard(torch.floor_divide, x, y)


@pointwise(NUMBERS)
def mod(x: Tensor, y: Tensor) -> Tensor:
    """What is left by floordiv, of y's sign; of an integer and zero, zero."""
    return _guard(torch.remainder, x, y)


def _guard(function: Any, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_floating_point:
        result: Tensor = function(x, y)
        return result
    one = torch.ones((), dtype=y.dtype)
    return torch.where(
        y == 0, torch.zeros((), dtype=y.dtype), function(x, torch.where(y == 0, one, y))
    )


def _pow(made: Op, x: Operand, y: Operand) -> Any:
    is_whole = isinstance(x, Tile) and x.dtype.kind in ("int", "uint")
    if is_whole and type(y) is int and 0 < y <= _LARGEST_POWER:
        return reduce(lambda power, _: mul(power, x), range(y - 1), x)
    return apply(made, [x, y], FLOATS, None)


# Of integers, powers up to this one are products.
_LARGEST_POWER = 16


@op(_pow)
def pow(x: Tensor, y: Tensor) -> Tensor:
    """x to the power of y. An integer to a small power of Python's stays one, else it is an f32."""
    return torch.pow(x, y)


@pointwise(NUMBERS)
def neg(x: Tensor) -> Tensor:
    """`-x`."""
    return torch.neg(x)


@pointwise(NUMBERS)
def abs(x: Tensor) -> Tensor:
    """x without its sign."""
    return torch.abs(x)


@pointwise(ANYTHING, gives=BOOL)
def less(x: Tensor, y: Tensor) -> Tensor:
    """`x < y`."""
    return torch.lt(x, y)


@pointwise(ANYTHING, gives=BOOL)
def less_equal(x: Tensor, y: Tensor) -> Tensor:
    """`x <= y`."""
    return torch.le(x, y)


@pointwise(ANYTHING, gives=BOOL)
def greater(x: Tensor, y: Tensor) -> Tensor:
    """`x > y`."""
    return torch.gt(x, y)


@pointwise(ANYTHING, gives=BOOL)
def greater_equal(x: Tensor, y: Tensor) -> Tensor:
    """`x >= y`."""
    return torch.ge(x, y)


@pointwise(ANYTHING, gives=BOOL)
def equal(x: Tensor, y: Tensor) -> Tensor:
    """x == y; nan equals nothing."""
    return torch.eq(x, y)


@pointwise(ANYTHING, gives=BOOL)
def not_equal(x: Tensor, y: Tensor) -> Tensor:
    """`x != y`."""
    return torch.ne(x, y)


@pointwise(INTEGERS)
def bitwise_and(x: Tensor, y: Tensor) -> Tensor:
    """The bits that both have; of bools, whether both hold."""
    return torch.bitwise_and(x, y)


@pointwise(INTEGERS)
def bitwise_or(x: Tensor, y: Tensor) -> Tensor:
    """The bits that one has at least; of bools, whether one holds."""
    return torch.bitwise_or(x, y)


@pointwise(INTEGERS)
def bitwise_xor(x: Tensor, y: Tensor) -> Tensor:
    """The bits in which they differ."""
    return torch.bitwise_xor(x, y)


@pointwise(INTEGERS)
def bitwise_not(x: Tensor) -> Tensor:
    """The other bits; of bools, the opposite."""
    return torch.bitwise_not(x)


_SHIFTED = Takes(frozenset({"int", "uint"}), None)


@pointwise(_SHIFTED)
def shift_left(x: Tensor, y: Tensor) -> Tensor:
    """x << y; by its number of bits or more, zero."""
    return torch.where(_is_shift(x, y), x << torch.where(_is_shift(x, y), y, 0), 0)


@pointwise(_SHIFTED)
def shift_right(x: Tensor, y: Tensor) -> Tensor:
    """x >> y, of x's sign; by its number of bits or more, all bits are that of the sign."""
    if not x.dtype.is_signed:
        return torch.where(_is_shift(x, y), x >> torch.where(_is_shift(x, y), y, 0), 0)
    last = 8 * x.element_size() - 1
    return x >> torch.where(_is_shift(x, y), y, last)


def _is_shift(x: Tensor, y: Tensor) -> Tensor:
    return (y >= 0) & (y < 8 * x.element_size())


def _logical(made: Op, *operands: Operand) -> Tile:
    tiles = [as_bool(operand, made.name) for operand in operands]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return made.add(*tiles, type=TileType(shape, BOOL), valid=valid)


def as_bool(value: Any, what: str) -> Tile:
    """Whether each element is not zero."""
    tile = as_tile(value, None, what)
    return tile if tile.dtype == BOOL else not_equal(tile, 0)


@op(_logical)
def logical_and(x: Tensor, y: Tensor) -> Tensor:
    """Whether both are not zero."""
    return torch.logical_and(x, y)


@op(_logical)
def logical_or(x: Tensor, y: Tensor) -> Tensor:
    """Whether one is not zero."""
    return torch.logical_or(x, y)


@op(_logical)
def logical_not(x: Tensor) -> Tensor:
    """Whether it is zero."""
    return torch.logical_not(x)


def _where(made: Op, condition: Operand, x: Operand, y: Operand) -> Tile:
    dtype = common_dtype([x, y], "where")
    tiles = [as_bool(condition, "where"), as_tile(x, dtype, "where"), as_tile(y, dtype, "where")]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return made.add(*tiles, type=TileType(shape, dtype), valid=valid)


@op(_where)
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x where a condition holds, else y."""
    return torch.where(condition, x, y)


def _extreme(made: Op, x: Operand, y: Operand) -> Any:
    on_sizes = {"minimum": algebra.smaller, "maximum": algebra.larger}[made.name]
    if all(isinstance(value, (int, IndexExpr)) for value in (x, y)):
        return IndexExpr(on_sizes(expr_of(x), expr_of(y)))
    dtype = require_common_dtype(made, [x, y], ANYTHING)
    tiles = [as_tile(value, dtype, made.name) for value in (x, y)]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return made.add(*tiles, type=TileType(shape, dtype), valid=valid)


@op(_extreme)
def minimum(x: Tensor, y: Tensor) -> Tensor:
    """The smaller of two; nan if one is. Of sizes, a size."""
    return torch.minimum(x, y)


@op(_extreme)
def maximum(x: Tensor, y: Tensor) -> Tensor:
    """The larger of two; nan if one is. Of sizes, a size."""
    return torch.maximum(x, y)


def _clamp(
    made: Op,
    x: Operand,
    low: Operand | None = None,
    high: Operand | None = None,
    *,
    min: Operand | None = None,
    max: Operand | None = None,
) -> Any:
    least, most = (min if low is None else low), (max if high is None else high)
    if least is not None and most is not None:
        return apply(made, [x, least, most], NUMBERS, None)
    if least is None and most is None:
        raise errors.KernelError(
            "tkl.clamp has no bound", where=user_line(), hint="tkl.clamp(x, 0, 1), or min= or max="
        )
    return minimum(x, most) if least is None else maximum(x, least)


@op(_clamp)
def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x, or the nearer bound where it lies outside; one bound may be left out, `min=0`."""
    return torch.minimum(torch.maximum(x, low), high)


def _fma(made: Op, x: Operand, y: Operand, z: Operand) -> Any:
    if common_dtype([x, y, z], "fma").kind != "float":
        return add(mul(x, y), z)
    return apply(made, [x, y, z], FLOATS, None)


@op(_fma)
def fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x * y + z, of floats rounded once."""
    wide = torch.float64 if x.dtype != torch.float64 else x.dtype
    return (x.to(wide) * y.to(wide) + z.to(wide)).to(x.dtype)


OPERATORS.update(
    {
        made.name: made
        for made in (
            *(add, sub, mul, truediv, floordiv, mod, pow, neg, abs),
            *(less, less_equal, greater, greater_equal, equal, not_equal),
            *(bitwise_and, bitwise_or, bitwise_xor, bitwise_not, shift_left, shift_right),
        )
    }
)
