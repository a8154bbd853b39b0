"""Elementwise arithmetic, comparisons, bitwise and logical ops."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from turbine import algebra, errors
from turbine.kernel.lang.elementwise import (
    ANYTHING,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Takes,
    align_valid,
    apply,
    pointwise,
    require_common_dtype,
)
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.trace.op import Op, Operand, broadcast_shapes, common_dtype, op
from turbine.kernel.trace.tracer import OPERATORS, IndexExpr, Tile, expr_of, user_line
from turbine.kernel.trace.types import BOOL, TileType
from turbine.kernel.trace.validity import both


@pointwise(NUMBERS)
def add(x: Tensor, y: Tensor) -> Tensor:
    """Sum of x and y, elementwise: `x + y`.

    Integers wrap around on overflow.

    Example::

        tkl.add(tkl.arange(3), 10)  # [10 11 12]
    """
    return torch.add(x, y)


@pointwise(NUMBERS)
def sub(x: Tensor, y: Tensor) -> Tensor:
    """Difference of x and y, elementwise: `x - y`.

    Integers wrap around on overflow.

    Example::

        tkl.sub(10, tkl.arange(3))  # [10 9 8]
    """
    return torch.sub(x, y)


@pointwise(NUMBERS)
def mul(x: Tensor, y: Tensor) -> Tensor:
    """Product of x and y, elementwise: `x * y`.

    Integers wrap around on overflow. `tkl.dot` is the matrix product.

    Example::

        tkl.mul(tkl.arange(4), 3)  # [0 3 6 9]
    """
    return torch.mul(x, y)


@pointwise(FLOATS)
def truediv(x: Tensor, y: Tensor) -> Tensor:
    """Quotient of x and y, elementwise: `x / y`.

    Integers are converted to f32.

    Example::

        tkl.truediv(tkl.arange(4), 2)  # [0 0.5 1 1.5]
    """
    return torch.div(x, y)


@pointwise(NUMBERS)
def floordiv(x: Tensor, y: Tensor) -> Tensor:
    """Quotient of x and y rounded toward negative infinity, elementwise: `x // y`.

    An integer divided by zero is 0.

    Example::

        tkl.floordiv(tkl.arange(-2, 3), 2)  # [-1 -1 0 0 1]
    """
    return _guard(torch.floor_divide, x, y)


@pointwise(NUMBERS)
def mod(x: Tensor, y: Tensor) -> Tensor:
    """Remainder of `x // y`, elementwise, with the sign of y: `x % y`.

    The remainder of an integer divided by zero is 0.

    Example::

        tkl.mod(tkl.arange(-2, 3), 3)  # [1 2 0 1 2]
    """
    return _guard(torch.remainder, x, y)


def _guard(function: Any, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_floating_point:
        result: Tensor = function(x, y)
        return result
    one = torch.ones((), dtype=y.dtype)
    return torch.where(
        y == 0, torch.zeros((), dtype=y.dtype), function(x, torch.where(y == 0, one, y))
    )


def _pow(op: Op, x: Operand, y: Operand) -> Any:
    is_whole = isinstance(x, Tile) and x.dtype.kind in ("int", "uint")
    if is_whole and type(y) is int and 0 < y <= _LARGEST_POWER:
        return reduce(lambda power, _: mul(power, x), range(y - 1), x)
    return apply(op, [x, y], FLOATS, None)


# The largest power of integers that is expanded to multiplications.
_LARGEST_POWER = 16


@op(_pow)
def pow(x: Tensor, y: Tensor) -> Tensor:
    """x raised to the power y, elementwise: `x ** y`.

    An integer tile to the power of a Python integer from 1 to 16 stays an integer; otherwise
    integers are converted to f32.

    Example::

        tkl.pow(tkl.arange(4), 2)  # [0 1 4 9]
        tkl.pow(tkl.arange(4), 0.5)  # [0 1 1.41421 1.73205]
    """
    return torch.pow(x, y)


@pointwise(NUMBERS)
def neg(x: Tensor) -> Tensor:
    """Negation, elementwise: `-x`.

    Example::

        tkl.neg(tkl.arange(3))  # [0 -1 -2]
    """
    return torch.neg(x)


@pointwise(NUMBERS)
def abs(x: Tensor) -> Tensor:
    """Absolute value, elementwise.

    The smallest signed integer has no absolute value of its dtype and is returned unchanged.

    Example::

        tkl.abs(tkl.arange(-2, 2))  # [2 1 0 1]
    """
    return torch.abs(x)


@pointwise(ANYTHING, gives=BOOL)
def less(x: Tensor, y: Tensor) -> Tensor:
    """Whether x is less than y, elementwise: `x < y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.less(tkl.arange(3), 1)  # [True False False]
    """
    return torch.lt(x, y)


@pointwise(ANYTHING, gives=BOOL)
def less_equal(x: Tensor, y: Tensor) -> Tensor:
    """Whether x is less than or equal to y, elementwise: `x <= y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.less_equal(tkl.arange(3), 1)  # [True True False]
    """
    return torch.le(x, y)


@pointwise(ANYTHING, gives=BOOL)
def greater(x: Tensor, y: Tensor) -> Tensor:
    """Whether x is greater than y, elementwise: `x > y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.greater(tkl.arange(3), 1)  # [False False True]
    """
    return torch.gt(x, y)


@pointwise(ANYTHING, gives=BOOL)
def greater_equal(x: Tensor, y: Tensor) -> Tensor:
    """Whether x is greater than or equal to y, elementwise: `x >= y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.greater_equal(tkl.arange(3), 1)  # [False True True]
    """
    return torch.ge(x, y)


@pointwise(ANYTHING, gives=BOOL)
def equal(x: Tensor, y: Tensor) -> Tensor:
    """Whether x equals y, elementwise: `x == y`.

    The result is bool. nan equals nothing, itself included.

    Example::

        tkl.equal(tkl.arange(3), 1)  # [False True False]
    """
    return torch.eq(x, y)


@pointwise(ANYTHING, gives=BOOL)
def not_equal(x: Tensor, y: Tensor) -> Tensor:
    """Whether x differs from y, elementwise: `x != y`.

    The result is bool. nan differs from everything, itself included.

    Example::

        tkl.not_equal(tkl.arange(3), 1)  # [True False True]
    """
    return torch.ne(x, y)


@pointwise(INTEGERS)
def bitwise_and(x: Tensor, y: Tensor) -> Tensor:
    """Bitwise AND, elementwise: `x & y`.

    Operands are integers or bools; on bools it is the logical AND.

    Example::

        tkl.bitwise_and(tkl.arange(4), 2)  # [0 0 2 2]
    """
    return torch.bitwise_and(x, y)


@pointwise(INTEGERS)
def bitwise_or(x: Tensor, y: Tensor) -> Tensor:
    """Bitwise OR, elementwise: `x | y`.

    Operands are integers or bools; on bools it is the logical OR.

    Example::

        tkl.bitwise_or(tkl.arange(4), 2)  # [2 3 2 3]
    """
    return torch.bitwise_or(x, y)


@pointwise(INTEGERS)
def bitwise_xor(x: Tensor, y: Tensor) -> Tensor:
    """Bitwise XOR, elementwise: `x ^ y`.

    Operands are integers or bools; on bools it is the logical XOR.

    Example::

        tkl.bitwise_xor(tkl.arange(4), 2)  # [2 3 0 1]
    """
    return torch.bitwise_xor(x, y)


@pointwise(INTEGERS)
def bitwise_not(x: Tensor) -> Tensor:
    """Bitwise NOT, elementwise: `~x`.

    The operand is an integer or a bool; on bools it is the logical NOT.

    Example::

        tkl.bitwise_not(tkl.arange(3))  # [-1 -2 -3]
    """
    return torch.bitwise_not(x)


_SHIFTED = Takes(frozenset({"int", "uint"}), None)


@pointwise(_SHIFTED)
def shift_left(x: Tensor, y: Tensor) -> Tensor:
    """x shifted left by y bits, elementwise: `x << y`.

    A shift by a negative number, or by the width of the dtype or more, gives 0.

    Example::

        tkl.shift_left(tkl.arange(4), 2)  # [0 4 8 12]
    """
    return torch.where(_is_shift(x, y), x << torch.where(_is_shift(x, y), y, 0), 0)


@pointwise(_SHIFTED)
def shift_right(x: Tensor, y: Tensor) -> Tensor:
    """x shifted right by y bits, elementwise: `x >> y`.

    The shift is arithmetic on signed dtypes and logical on unsigned ones. A shift by a negative
    number, or by the width of the dtype or more, gives the sign: -1 or 0.

    Example::

        tkl.shift_right(tkl.arange(-8, 8, 4), 2)  # [-2 -1 0 1]
    """
    if not x.dtype.is_signed:
        return torch.where(_is_shift(x, y), x >> torch.where(_is_shift(x, y), y, 0), 0)
    last = 8 * x.element_size() - 1
    return x >> torch.where(_is_shift(x, y), y, last)


def _is_shift(x: Tensor, y: Tensor) -> Tensor:
    return (y >= 0) & (y < 8 * x.element_size())


def _logical_binary(op: Op, x: Operand, y: Operand) -> Tile:
    return _apply_logical(op, x, y)


def _logical_unary(op: Op, x: Operand) -> Tile:
    return _apply_logical(op, x)


def _apply_logical(op: Op, *operands: Operand) -> Tile:
    tiles = [as_bool(operand, op.name) for operand in operands]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return op.add(*tiles, type=TileType(shape, BOOL), valid=valid)


def as_bool(value: Any, what: str) -> Tile:
    """Whether each element is nonzero."""
    tile = as_tile(value, None, what)
    return tile if tile.dtype == BOOL else not_equal(tile, 0)


@op(_logical_binary)
def logical_and(x: Tensor, y: Tensor) -> Tensor:
    """Whether both x and y are nonzero, elementwise.

    Operands have any dtype; the result is bool. Both operands are evaluated.

    Example::

        tkl.logical_and(tkl.arange(3), 4)  # [False True True]
    """
    return torch.logical_and(x, y)


@op(_logical_binary)
def logical_or(x: Tensor, y: Tensor) -> Tensor:
    """Whether x or y is nonzero, elementwise.

    Operands have any dtype; the result is bool. Both operands are evaluated.

    Example::

        tkl.logical_or(tkl.arange(3), 0)  # [False True True]
    """
    return torch.logical_or(x, y)


@op(_logical_unary)
def logical_not(x: Tensor) -> Tensor:
    """Whether x is zero, elementwise.

    The operand has any dtype; the result is bool.

    Example::

        tkl.logical_not(tkl.arange(3))  # [True False False]
    """
    return torch.logical_not(x)


def _where(op: Op, condition: Operand, x: Operand, y: Operand) -> Tile:
    dtype = common_dtype([x, y], "where")
    tiles = [as_bool(condition, "where"), as_tile(x, dtype, "where"), as_tile(y, dtype, "where")]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return op.add(*tiles, type=TileType(shape, dtype), valid=valid)


@op(_where)
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x where the condition is nonzero, y elsewhere, elementwise.

    All three operands are broadcast, and x and y are converted to one dtype. Where any of the
    three is masked off, so is the result, whichever operand is selected.

    Example::

        tkl.where(tkl.arange(4) < 2, tkl.arange(4), -1)  # [0 1 -1 -1]
    """
    return torch.where(condition, x, y)


def _extreme(op: Op, x: Operand, y: Operand) -> Any:
    on_sizes = {"minimum": algebra.smaller, "maximum": algebra.larger}[op.name]
    if all(isinstance(value, (int, IndexExpr)) for value in (x, y)):
        return IndexExpr(on_sizes(expr_of(x), expr_of(y)))
    dtype = require_common_dtype(op, [x, y], ANYTHING)
    tiles = [as_tile(value, dtype, op.name) for value in (x, y)]
    shape = broadcast_shapes([tile.type for tile in tiles])
    valid = both([align_valid(tile, len(shape)) for tile in tiles])
    return op.add(*tiles, type=TileType(shape, dtype), valid=valid)


@op(_extreme)
def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Smaller of x and y, elementwise; nan if either is nan.

    Of two sizes, such as `tkl.minimum(N, 64)`, the result is a size.

    Example::

        tkl.minimum(tkl.arange(4), 2)  # [0 1 2 2]
    """
    return torch.minimum(x, y)


@op(_extreme)
def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Larger of x and y, elementwise; nan if either is nan.

    Of two sizes, such as `tkl.maximum(N, 64)`, the result is a size.

    Example::

        tkl.maximum(tkl.arange(4), 2)  # [2 2 2 3]
    """
    return torch.maximum(x, y)


def _clamp(
    op: Op,
    x: Operand,
    low: Operand | None = None,
    high: Operand | None = None,
    *,
    min: Operand | None = None,
    max: Operand | None = None,
) -> Any:
    least, most = (min if low is None else low), (max if high is None else high)
    if least is not None and most is not None:
        return apply(op, [x, least, most], NUMBERS, None)
    if least is None and most is None:
        raise errors.KernelError(
            "tkl.clamp has no bound", where=user_line(), hint="tkl.clamp(x, 0, 1), or min= or max="
        )
    return minimum(x, most) if least is None else maximum(x, least)


@op(_clamp)
def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x limited to the range from low to high, elementwise.

    One bound may be left out; `min` and `max` are other names for the bounds. nan stays nan. Where
    low is above high, the result is high.

    Example::

        tkl.clamp(tkl.arange(5), 1, 3)  # [1 1 2 3 3]
        tkl.clamp(tkl.arange(5), max=2)  # [0 1 2 2 2]
    """
    return torch.minimum(torch.maximum(x, low), high)


def _fma(op: Op, x: Operand, y: Operand, z: Operand) -> Any:
    if common_dtype([x, y, z], "fma").kind != "float":
        return add(mul(x, y), z)
    return apply(op, [x, y, z], FLOATS, None)


@op(_fma)
def fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Fused multiply-add, elementwise: `x * y + z`.

    Floats are rounded once, after the addition. Integers stay integers.

    Example::

        tkl.fma(tkl.arange(3), 10, 1)  # [1 11 21]
    """
    wide = torch.float64 if x.dtype != torch.float64 else x.dtype
    return (x.to(wide) * y.to(wide) + z.to(wide)).to(x.dtype)


OPERATORS.update(
    {
        entry.name: entry
        for entry in (
            *(add, sub, mul, truediv, floordiv, mod, pow, neg, abs),
            *(less, less_equal, greater, greater_equal, equal, not_equal),
            *(bitwise_and, bitwise_or, bitwise_xor, bitwise_not, shift_left, shift_right),
        )
    }
)
