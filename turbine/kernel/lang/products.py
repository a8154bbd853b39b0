"""Matrix multiplication of tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import Expr
from turbine.dtypes import Dtype
from turbine.kernel.lang.arithmetic import greater
from turbine.kernel.lang.constants import constant, sizes
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.reductions import has_lane
from turbine.kernel.lang.shapes import broadcast, masked
from turbine.kernel.trace.op import Op, common_dtype, op
from turbine.kernel.trace.tracer import OPERATORS, Tile, user_line
from turbine.kernel.trace.types import DTYPES, F32
from turbine.kernel.trace.validity import ALWAYS, Valid, both


def _dot(op: Op, a: Tile, b: Tile, acc: Tile | None = None) -> Tile:
    _check(a, b)
    common = common_dtype([a, b], "dot")
    wide = accumulator_dtype(common)
    tiles = [as_tile(a, common, "dot"), as_tile(b, common, "dot")]
    if tiles[1].type.rank < tiles[0].type.rank:
        tiles[1] = broadcast(tiles[1], tiles[0].shape[:-2])
    shape = (*tiles[0].type.shape[:-1], tiles[1].type.shape[-1])
    start = constant(sizes(shape), wide, 0) if acc is None else as_tile(acc, None, "dot")
    if start.type.shape != shape:
        raise errors.KernelError(
            f"tkl.dot of {tiles[0].type} and {tiles[1].type}: the accumulator is {start.type}",
            where=user_line(),
            hint=f"the accumulator must have shape [{', '.join(map(str, shape))}]",
        )
    if start.dtype.kind != wide.kind:
        raise errors.KernelError(
            f"tkl.dot of {tiles[0].type} and {tiles[1].type}: the accumulator is {start!r}",
            where=user_line(),
            hint="floats are accumulated in floats, integers in integers",
        )
    left, right = tiles
    rows, columns = [left.type.rank - 1], [right.type.rank - 2]
    staying = [left.valid.apart_from(rows), right.valid.apart_from(columns), start.valid]
    return op.add(
        left,
        right,
        start,
        type=start.type,
        valid=both([*staying, _valid_products(left, right)]),
        bounds=(left.valid.bounds, right.valid.bounds),
        masks=(left.valid.along(rows).masks, right.valid.along(columns).masks),
    )


def _valid_products(left: Tile, right: Tile) -> Valid:
    """The lanes of a dot that sum at least one valid product, as in numpy.ma.dot."""
    row, column = left.type.rank - 1, right.type.rank - 2
    is_left, is_right = left.valid.along([row]).masks, right.valid.along([column]).masks
    if not is_left and not is_right:
        return ALWAYS
    if is_left and is_right:
        counts = dot(masked(left).to(F32), masked(right).to(F32))
        return Valid((), (greater(counts, 0),))
    tile, axis, other = (left, row, right) if is_left else (right, column, left)
    across = column if is_left else row
    ends = (replace(b, axis=axis) for b in other.valid.bounds if b.axis == across)
    both_inside = Valid((*tile.valid.bounds, *ends), tile.valid.masks)
    return Valid((), (has_lane(tile.type.shape, both_inside, [axis], keepdims=True),))


@op(_dot)
def dot(a: Tensor, b: Tensor, acc: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Matrix product of a and b, plus acc if it is given.

    Axes before the last two are batch axes, the same in both; a batch may also be multiplied by one
    matrix b. Products are accumulated in f32 (f64 for f64, i32 for integers, i64 for 64-bit ones),
    whatever the operands are; that is the dtype of the result, or the dtype of acc. Masked-off
    elements are skipped; where that leaves nothing to sum, the result is masked off.

    Example::

        a, b = tkl.iota((2, 3), 1), tkl.iota((3, 2), 0)
        tkl.dot(a, b)  # [[5 5] [5 5]]
        tkl.dot(a, b, tkl.full((2, 2), 10, tkl.i64))  # [[15 15] [15 15]]
    """
    wide = (
        acc.dtype
        if acc.dtype in (torch.float64, torch.int64)
        else _WIDE[acc.dtype.is_floating_point]
    )
    first = torch.where(left, a, torch.zeros((), dtype=a.dtype)).to(wide)
    second = torch.where(right, b, torch.zeros((), dtype=b.dtype)).to(wide)
    return (acc.to(wide) + first @ second).to(acc.dtype)


_WIDE = {True: torch.float32, False: torch.int32}


def accumulator_dtype(dtype: Dtype) -> Dtype:
    """The dtype of the accumulator of a dot."""
    if dtype.kind == "float":
        return dtype if dtype.bits == 64 else F32
    return DTYPES["i64" if dtype.bits == 64 else "i32"]


def _check(a: Any, b: Any) -> None:
    for operand in (a, b):
        if not isinstance(operand, Tile) or operand.type.rank < 2:
            raise errors.KernelError(
                f"tkl.dot of {a!r} and {b!r}",
                where=user_line(),
                hint="operands are tiles of two axes, or more with batch axes first",
            )
    batches = a.type.shape[:-2], b.type.shape[:-2]
    if batches[1] and batches[0] != batches[1]:
        raise errors.KernelError(
            f"tkl.dot of {a.type} and {b.type}: the batch sizes differ",
            where=user_line(),
            hint="axes before the last two must agree, or b must have two axes",
        )
    if a.type.shape[-1] != b.type.shape[-2]:
        raise errors.KernelError(
            f"tkl.dot of {a.type} and {b.type}: the contraction sizes {a.type.shape[-1]} and "
            f"{b.type.shape[-2]} differ",
            where=user_line(),
            hint=_transposed_hint(a.type.shape, b.type.shape),
        )


def _transposed_hint(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> str:
    if a[-1] == b[-1]:
        return "transpose the second: tkl.dot(a, tkl.transpose(b, (1, 0)))"
    return "the last size of a must equal the second to last size of b"


OPERATORS["dot"] = dot
