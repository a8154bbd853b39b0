"""Creation of tiles: ranges and constants."""

from __future__ import annotations

from typing import Any

import torch

from turbine import errors
from turbine.algebra import Expr, ceiling
from turbine.dtypes import Dtype
from turbine.kernel.lang.casting import to_dtype
from turbine.kernel.lang.constants import check_dtype, constant, tile_of
from turbine.kernel.lang.shapes import broadcast_to
from turbine.kernel.trace.op import Op, Operand, Shape, Size, op, shape_of
from turbine.kernel.trace.tracer import IndexExpr, Tile, expr_of, user_line
from turbine.kernel.trace.types import (
    I64,
    DtypeSymbol,
    ElementType,
    TileType,
)


def _arange(
    op: Op, start: Size, stop: Size | None = None, step: Any = 1, dtype: ElementType = I64
) -> Any:
    if isinstance(step, (Dtype, DtypeSymbol)):
        step, dtype = 1, step
    first, end = (0, start) if stop is None else (start, stop)
    if type(step) is not int or step == 0:
        raise errors.KernelError(
            f"tkl.arange has {step=}", where=user_line(), hint="the step is an integer other than 0"
        )
    for limit in (first, end):
        if not isinstance(limit, (int, IndexExpr)):
            raise errors.KernelError(
                f"tkl.arange of {limit!r}",
                where=user_line(),
                hint="bounds are integers and sizes; add a computed number to the tile",
            )
    checked = check_dtype(dtype, "tkl.arange")
    if step != 1:
        return _strided(op, expr_of(first), expr_of(end), step, checked)
    size = expr_of(end) - expr_of(first)
    return op.add(size, expr_of(first), checked, type=TileType((size,), checked))


def _strided(op: Op, first: Expr, end: Expr, step: int, dtype: Dtype) -> Any:
    distance = end - first if step > 0 else first - end
    counts = op(IndexExpr(ceiling(distance, abs(step))), dtype=dtype)
    return counts * step + IndexExpr(first)


@op(_arange)
def arange(size: int, start: int, dtype: torch.dtype) -> torch.Tensor:
    """Consecutive numbers as a tile of one axis: from start to below stop, by step.

    With one bound, it is the stop. Bounds are integers and sizes, known before the kernel runs;
    add a computed number to the tile. The step is a Python integer, not 0.

    Example::

        tkl.arange(4)  # [0 1 2 3]
        tkl.arange(2, 6, 2)  # [2 4]
        tkl.arange(3, dtype=tkl.f32)  # [0 1 2]
    """
    return torch.arange(start, start + size).to(dtype)


def iota(shape: Shape, axis: int, dtype: ElementType = I64) -> Tile:
    """Tile of the given shape that holds each element's index along an axis.

    Example::

        tkl.iota((2, 3), axis=1)  # [[0 1 2] [0 1 2]]
    """
    sizes = shape_of(shape, "tkl.iota")
    if not -len(sizes) <= axis < len(sizes):
        raise errors.KernelError(
            f"tkl.iota of {len(sizes)} axes: {axis=}",
            where=user_line(),
            hint=f"axes are {-len(sizes)} to {len(sizes) - 1}",
        )
    counts = arange(IndexExpr(sizes[axis]), dtype=dtype)
    trailing = (None,) * (len(sizes) - 1 - axis % len(sizes))
    shaped = counts[(slice(None), *trailing)]
    return tile_of(broadcast_to(shaped, [IndexExpr(size) for size in sizes]))


def full(shape: Shape, value: Operand, dtype: ElementType) -> Tile:
    """Tile of one number, which may be computed.

    Example::

        tkl.full((3,), tkl.sum(tkl.arange(4)), tkl.f32)  # [6 6 6]
    """
    if isinstance(value, (bool, int, float)):
        return tile_of(constant(shape, dtype, value))
    number = to_dtype(value, dtype)
    return tile_of(broadcast_to(number, shape))


def zeros(shape: Shape, dtype: ElementType) -> Tile:
    """Tile of zeros.

    Example::

        tkl.zeros((3,), tkl.i32)  # [0 0 0]
    """
    return tile_of(constant(shape, dtype, 0))
