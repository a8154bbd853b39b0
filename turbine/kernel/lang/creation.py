"""Tiles out of nothing: numbers, constants and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turbine import dtypes, errors
from turbine.dtypes import Dtype
from turbine.kernel.trace import tracer
from turbine.kernel.trace.algebra import Expr, ceiling
from turbine.kernel.trace.op import MAKE, Op, Operand, Shape, Size, op, shape_of
from turbine.kernel.trace.tracer import IndexExpr, Tile, expr_of, user_line
from turbine.kernel.trace.types import (
    I64,
    DtypeSymbol,
    ElementType,
    TileType,
    dtype_name,
    fits,
    tensor_of,
)


def _constant(made: Op, shape: Shape, dtype: ElementType, value: float) -> Tile:
    checked = check_dtype(dtype, "tkl.constant")
    if not isinstance(value, (bool, int, float)):
        raise errors.KernelError(
            f"tkl.constant of {value!r}",
            where=user_line(),
            hint="it is a number of Python's; tkl.full takes what is computed",
        )
    if not fits(value, checked):
        raise errors.KernelError(
            f"{value} is not a number of {dtype_name(checked)}",
            where=user_line(),
            hint="convert the tile that it goes with to a larger type, x.to(tkl.i64)",
        )
    sizes = shape_of(shape, "tkl.constant")
    return made.add(sizes, checked, value, type=TileType(sizes, checked))


@op(_constant)
def constant(shape: Sequence[int], dtype: torch.dtype, value: float) -> torch.Tensor:
    """Tile of one Python number.

    The number must be one of the dtype. `tkl.full` takes computed numbers too.

    Example::

        tkl.constant((3,), tkl.f32, 0.5)  # [0.5 0.5 0.5]
    """
    return tensor_of(value, dtypes.of_torch(dtype)).repeat(tuple(shape))


def _from_index(made: Op, value: IndexExpr, dtype: Dtype) -> Tile:
    return made.add(value.expr, dtype, type=TileType((), dtype))


@op(_from_index)
def from_index(value: int, dtype: torch.dtype) -> torch.Tensor:
    """A size, or the number of a program or of a turn of a loop, to compute with."""
    return torch.tensor(value, dtype=torch.int64).to(dtype)


def _arange(
    made: Op, start: Size, stop: Size | None = None, step: Any = 1, dtype: ElementType = I64
) -> Any:
    if isinstance(step, (Dtype, DtypeSymbol)):
        step, dtype = 1, step
    first, end = (0, start) if stop is None else (start, stop)
    if type(step) is not int or step == 0:
        raise errors.KernelError(
            f"tkl.arange has {step=}", where=user_line(), hint="a step is a number, not 0"
        )
    for limit in (first, end):
        if not isinstance(limit, (int, IndexExpr)):
            raise errors.KernelError(
                f"tkl.arange of {limit!r}",
                where=user_line(),
                hint="how long it is must be known before the kernel runs; add the rest to it",
            )
    checked = check_dtype(dtype, "tkl.arange")
    if step != 1:
        return _count_steps(made, expr_of(first), expr_of(end), step, checked)
    size = expr_of(end) - expr_of(first)
    return made.add(size, expr_of(first), checked, type=TileType((size,), checked))


def _count_steps(made: Op, first: Expr, end: Expr, step: int, dtype: Dtype) -> Any:
    reach = end - first if step > 0 else first - end
    turns = made(IndexExpr(ceiling(reach, abs(step))), dtype=dtype)
    return turns * step + IndexExpr(first)


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
    behind = (None,) * (len(sizes) - 1 - axis % len(sizes))
    shaped = counts[(slice(None), *behind)]
    return _tile(MAKE["broadcast_to"](shaped, [IndexExpr(size) for size in sizes]))


def full(shape: Shape, value: Operand, dtype: ElementType) -> Tile:
    """Tile of one number, which may be computed.

    Example::

        tkl.full((3,), tkl.sum(tkl.arange(4)), tkl.f32)  # [6 6 6]
    """
    if isinstance(value, (bool, int, float)):
        return _tile(constant(shape, dtype, value))
    number = MAKE["to_dtype"](value, dtype)
    return _tile(MAKE["broadcast_to"](number, shape))


def zeros(shape: Shape, dtype: ElementType) -> Tile:
    """Tile of zeros.

    Example::

        tkl.zeros((3,), tkl.i32)  # [0 0 0]
    """
    return _tile(constant(shape, dtype, 0))


def _tile(value: Any) -> Tile:
    assert isinstance(value, Tile)
    return value


def check_dtype(dtype: Any, what: str) -> Dtype:
    """The element type that a user names."""
    if isinstance(dtype, DtypeSymbol):
        dtype = tracer.current(what).dtypes.get(dtype.name, dtype)
    if isinstance(dtype, Dtype):
        return dtype
    is_open = isinstance(dtype, DtypeSymbol)
    raise errors.KernelError(
        f"{what}: {dtype} is not an element type{' of an argument' if is_open else ''}",
        where=user_line(),
        hint="tkl.f32, tkl.i32, ... or the type of a tile or buffer, x.dtype",
    )


def number(value: Any, dtype: Dtype) -> Tile:
    """A number of Python's, or a size, as a tile without axes."""
    if isinstance(value, IndexExpr) and value.expr.number is None:
        return _tile(from_index(value, dtype))
    known = value.expr.number if isinstance(value, IndexExpr) else value
    return _tile(constant((), dtype, known))


def sizes(shape: Sequence[Expr]) -> list[IndexExpr]:
    """Sizes as users have them."""
    return list(map(IndexExpr, shape))


MAKE["number"] = number
