"""Constants of a kernel, and checks of dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turbine import dtypes, errors
from turbine.algebra import Expr
from turbine.dtypes import Dtype
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import Op, Shape, op, shape_of
from turbine.kernel.trace.tracer import IndexExpr, Tile, user_line
from turbine.kernel.trace.types import (
    DtypeSymbol,
    ElementType,
    TileType,
    dtype_name,
    fits,
    tensor_of,
)


def _constant(op: Op, shape: Shape, dtype: ElementType, value: float) -> Tile:
    checked = check_dtype(dtype, "tkl.constant")
    if not isinstance(value, (bool, int, float)):
        raise errors.KernelError(
            f"tkl.constant of {value!r}",
            where=user_line(),
            hint="pass a Python number; tkl.full takes a computed one",
        )
    if not fits(value, checked):
        raise errors.KernelError(
            f"{value} is out of range for {dtype_name(checked)}",
            where=user_line(),
            hint="convert the other operand to a wider dtype, x.to(tkl.i64)",
        )
    sizes = shape_of(shape, "tkl.constant")
    return op.add(sizes, checked, value, type=TileType(sizes, checked))


@op(_constant)
def constant(shape: Sequence[int], dtype: torch.dtype, value: float) -> torch.Tensor:
    """Tile of one Python number.

    The number must be one of the dtype. `tkl.full` takes computed numbers too.

    Example::

        tkl.constant((3,), tkl.f32, 0.5)  # [0.5 0.5 0.5]
    """
    return tensor_of(value, dtypes.of_torch(dtype)).repeat(tuple(shape))


def _from_index(op: Op, value: IndexExpr, dtype: Dtype) -> Tile:
    return op.add(value.expr, dtype, type=TileType((), dtype))


@op(_from_index)
def from_index(value: int, dtype: torch.dtype) -> torch.Tensor:
    """Convert a size, a program id or a loop counter to a scalar tile."""
    return torch.tensor(value, dtype=torch.int64).to(dtype)


def tile_of(value: Any) -> Tile:
    """Narrow the type of an op's result to Tile."""
    assert isinstance(value, Tile)
    return value


def check_dtype(dtype: Any, what: str) -> Dtype:
    """Check a dtype and resolve dtype symbols."""
    if isinstance(dtype, DtypeSymbol):
        dtype = tracer.current(what).dtypes.get(dtype.name, dtype)
    if isinstance(dtype, Dtype):
        return dtype
    is_open = isinstance(dtype, DtypeSymbol)
    raise errors.KernelError(
        f"{what}: {dtype} is not a dtype{' of an argument' if is_open else ''}",
        where=user_line(),
        hint="use tkl.f32, tkl.i32, ... or the dtype of a tile or buffer, x.dtype",
    )


def number(value: Any, dtype: Dtype) -> Tile:
    """Convert a Python number or a size to a scalar tile."""
    if isinstance(value, IndexExpr) and value.expr.number is None:
        return tile_of(from_index(value, dtype))
    known = value.expr.number if isinstance(value, IndexExpr) else value
    return tile_of(constant((), dtype, known))


def sizes(shape: Sequence[Expr]) -> list[IndexExpr]:
    """Convert a shape to size expressions of the language."""
    return list(map(IndexExpr, shape))
