"""Conversions between dtypes."""

from __future__ import annotations

import torch

from turbine import errors
from turbine.kernel.lang.constants import check_dtype, number
from turbine.kernel.trace.op import Op, Operand, describe, op
from turbine.kernel.trace.tracer import OPERATORS, IndexExpr, Tile, user_line
from turbine.kernel.trace.types import ElementType


def _to_dtype(op: Op, x: Operand, dtype: ElementType) -> Tile:
    to = check_dtype(dtype, "tkl.to_dtype")
    if isinstance(x, (bool, int, float, IndexExpr)):
        return number(x, to)
    if not isinstance(x, Tile):
        raise errors.KernelError(
            f"tkl.to_dtype of {describe(x)}, which is not a tile",
            where=user_line(),
            hint="read a buffer with tkl.load",
        )
    return x if x.dtype == to else op.add(x, to, type=x.type.of(to), valid=x.valid)


@op(_to_dtype)
def to_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x converted to another dtype: `x.to(dtype)`.

    Floats are rounded to the nearest number of a smaller float, and truncated toward zero as
    integers. Integers keep their low bits. As bool, nonzero is True.

    Example::

        tkl.to_dtype(tkl.arange(4) * 0.75, tkl.i32)  # [0 0 1 2]
        tkl.to_dtype(tkl.arange(254, 258), tkl.u8)  # [254 255 0 1]
    """
    return x.to(dtype)


def _bitcast(op: Op, x: Tile, dtype: ElementType) -> Tile:
    to = check_dtype(dtype, "tkl.bitcast")
    if to.bits != x.dtype.bits or "bool" in (to.kind, x.dtype.kind):
        raise errors.KernelError(
            f"tkl.bitcast of {x!r} to {to.bits} bits",
            where=user_line(),
            hint="the dtypes must have the same width, and bool has no bitcast",
        )
    return op.add(x, to, type=x.type.of(to), valid=x.valid)


@op(_bitcast)
def bitcast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bits of x reinterpreted as another dtype of the same width.

    bool has no bitcast.

    Example::

        tkl.bitcast(tkl.full((2,), 1.0, tkl.f32), tkl.i32)  # [1065353216 1065353216]
    """
    return x.view(dtype)


OPERATORS["to_dtype"] = to_dtype
