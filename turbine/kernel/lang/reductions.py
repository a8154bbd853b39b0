"""Reductions along one axis, several axes or all of them.

Note [Masks and reductions]
Masked-off lanes are skipped. A lane of the result is masked off if it is out of bounds along an
axis that is kept, or if masks remove all of its row, as in numpy.ma. The row ends at the edge of
the buffer along a reduced axis; the result of an empty row is the neutral element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import ONE, Expr
from turbine.dtypes import Dtype
from turbine.kernel.lang import arithmetic
from turbine.kernel.lang.arithmetic import as_bool
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.shapes import axis_of, expand_dims, mask_of, squeeze
from turbine.kernel.trace.op import Op, Operand, op
from turbine.kernel.trace.tracer import Tile, user_line
from turbine.kernel.trace.types import BOOL, I64, TileType
from turbine.kernel.trace.validity import Valid, axes_of

Axes = int | Sequence[int] | None


def _axes(axis: Axes, tile: Tile, what: str) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(tile.type.rank))
    named = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(sorted({axis_of(one, tile.type.rank, what) for one in named}))


def _reduce(op: Op, tile: Tile, axes: tuple[int, ...], keepdims: bool, dtype: Dtype) -> Tile:
    """Add a reduction; conditions that do not depend on its axes apply to the result."""
    shape = tuple(size for axis, size in enumerate(tile.type.shape) if axis not in axes)
    result = op.add(
        tile,
        axes,
        type=TileType(shape, dtype),
        valid=valid_without(tile.type.shape, tile.valid, axes),
        bounds=tile.valid.bounds,
        masks=tile.valid.along(axes).masks,
    )
    for axis in axes if keepdims else ():
        result = expand_dims(result, axis)
    return result


def valid_without(shape: Sequence[Expr], valid: Valid, axes: Sequence[int]) -> Valid:
    """The valid lanes of a reduction's result: see Note [Masks and reductions]."""
    kept = valid.apart_from(axes)
    masks = [_squeeze(mask, axes) for mask in kept.masks]
    if valid.along(axes).masks:
        masks.append(has_lane(shape, valid, axes))
    moved = kept.move_bounds(lambda a: a - len([one for one in axes if one < a]))
    return Valid(moved, tuple(masks))


def has_lane(
    shape: Sequence[Expr], valid: Valid, axes: Sequence[int], *, keepdims: bool = False
) -> Tile:
    """Whether masks leave a lane along axes; size 1 along axes that the masks do not depend on."""
    masks = valid.along(axes).masks
    wide = {axis for mask in masks for axis in axes_of(mask)}
    sizes = tuple(size if axis in wide else ONE for axis, size in enumerate(shape))
    bounds = tuple(b for b in valid.bounds if b.axis is None or b.axis in wide)
    found: Tile = any(mask_of(sizes, Valid(bounds, masks)), tuple(axes), keepdims=keepdims)
    return found


def _squeeze(tile: Tile, axes: Sequence[int]) -> Tile:
    for axis in reversed(axes):
        tile = squeeze(tile, axis)
    return tile


def _numeric(
    op: Op, x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: bool = False
) -> Any:
    if isinstance(axis, Tile):  # tkl.max(x, y)
        return _BINARY[op.name](x, axis)
    tile = as_tile(x, None, op.name)
    is_sum = op.name in ("sum", "prod")
    dtype = I64 if is_sum and tile.dtype.kind != "float" else tile.dtype
    result = _reduce(
        op, as_tile(tile, dtype, op.name), _axes(axis, tile, _qualified_name(op)), keepdims, dtype
    )
    return result if acc is None else _BINARY[op.name](result, acc)


def _qualified_name(op: Op) -> str:
    return f"tkl.{op.name}"


_BINARY: dict[str, Callable[..., Any]] = {
    "sum": arithmetic.add,
    "prod": arithmetic.mul,
    "max": arithmetic.maximum,
    "min": arithmetic.minimum,
}


def _logical(op: Op, x: Tile, axis: Axes = None, *, keepdims: bool = False) -> Tile:
    tile = as_bool(x, op.name)
    return _reduce(op, tile, _axes(axis, tile, _qualified_name(op)), keepdims, BOOL)


def _index(op: Op, x: Tile, axis: int | None = None, *, keepdims: bool = False) -> Tile:
    tile = as_tile(x, None, op.name)
    if axis is None and tile.type.rank != 1:
        raise errors.KernelError(
            f"tkl.{op.name} of {tile!r} needs an axis", where=user_line(), hint="pass axis=0"
        )
    axes = _axes(0 if axis is None else axis, tile, _qualified_name(op))
    if len(axes) != 1:
        raise errors.KernelError(
            f"tkl.{op.name} takes one axis: {axis=}", where=user_line(), hint="pass axis=0"
        )
    return _reduce(op, tile, axes, keepdims, I64)


def neutral(name: str, dtype: torch.dtype) -> Any:
    """The neutral element of a reduction for a dtype."""
    if name in ("sum", "any"):
        return 0
    if name in ("prod", "all"):
        return 1
    least = name in ("max", "argmax")
    if dtype.is_floating_point:
        return float("-inf" if least else "inf")
    if dtype is torch.bool:
        return not least
    limits = torch.iinfo(dtype)
    return limits.min if least else limits.max


def _fill(name: str, x: Tensor, within: Tensor) -> Tensor:
    return torch.where(within, x, torch.tensor(neutral(name, x.dtype), dtype=x.dtype))


@op(_numeric)
def sum(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Sum over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives 0; where a mask removes every element, the
    result is masked off. Integers and bools are summed in i64, floats keep their dtype. `acc` is
    added to the sum.

    Example::

        tkl.sum(tkl.iota((2, 3), 1), axis=1)  # [3 3]
        tkl.sum(tkl.iota((2, 3), 1))  # 6
    """
    filled = _fill("sum", x, within)
    return filled.sum(tuple(axes)) if axes else filled


@op(_numeric)
def prod(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Product over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives 1; where a mask removes every element, the
    result is masked off. Integers and bools are multiplied in i64, floats keep their dtype. `acc`
    is multiplied by the product.

    Example::

        tkl.prod(tkl.arange(1, 5))  # 24
    """
    filled = _fill("prod", x, within)
    # torch rounds products of small floats at every step.
    product = filled.float() if x.dtype in (torch.float16, torch.bfloat16) else filled
    for axis in reversed(axes):
        product = product.prod(axis)
    return product.to(x.dtype)


@op(_numeric)
def max(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Maximum over an axis, several axes, or all of them; nan if an element is nan.

    Masked-off elements are skipped. An empty axis gives -inf, or the smallest integer; where a
    mask removes every element, the result is masked off. `acc` is another operand.
    `tkl.max(x, y)` of two tiles is `tkl.maximum`.

    Example::

        tkl.max(tkl.iota((2, 3), 1), axis=0)  # [0 1 2]
        tkl.max(tkl.arange(3), acc=7)  # 7
    """
    return _extreme("max", torch.amax, x, axes, within)


@op(_numeric)
def min(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Minimum over an axis, several axes, or all of them; nan if an element is nan.

    Masked-off elements are skipped. An empty axis gives inf, or the largest integer; where a mask
    removes every element, the result is masked off. `acc` is another operand.
    `tkl.min(x, y)` of two tiles is `tkl.minimum`.

    Example::

        tkl.min(tkl.iota((2, 3), 0), axis=1, keepdims=True)  # [[0] [1]]
    """
    return _extreme("min", torch.amin, x, axes, within)


def _extreme(name: str, function: Any, x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    filled = _fill(name, x, within)
    if not axes:
        return filled
    if not filled.numel():
        shape = [size for axis, size in enumerate(filled.shape) if axis not in axes]
        return torch.full(shape, neutral(name, x.dtype), dtype=x.dtype)
    reduced: Tensor = function(filled, tuple(axes))
    return reduced


@op(_logical)
def any(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Whether an element is nonzero over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives False; where a mask removes every element,
    the result is masked off.

    Example::

        tkl.any(tkl.arange(3) > 1)  # True
    """
    x = _fill("any", x, within)
    for axis in reversed(axes):
        x = x.any(axis)
    return x


@op(_logical)
def all(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Whether every element is nonzero over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives True; where a mask removes every element,
    the result is masked off.

    Example::

        tkl.all(tkl.arange(3) > 1)  # False
    """
    x = _fill("all", x, within)
    for axis in reversed(axes):
        x = x.all(axis)
    return x


@op(_index)
def argmax(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Index of the maximum along an axis, as i64.

    The first of equal elements, and the first nan if there is one. Masked-off elements are
    skipped. An empty axis gives 0; where a mask removes every element, the result is masked off. A
    tile of one axis needs no `axis`.

    Example::

        tkl.argmax((tkl.arange(5) * 2) % 5)  # 2
    """
    return _first_index(_fill("argmax", x, within), axes[0], within, torch.argmax)


@op(_index)
def argmin(x: Tensor, axes: Sequence[int], within: Tensor) -> Tensor:
    """Index of the minimum along an axis, as i64.

    The first of equal elements, and the first nan if there is one. Masked-off elements are
    skipped. An empty axis gives 0; where a mask removes every element, the result is masked off. A
    tile of one axis needs no `axis`.

    Example::

        tkl.argmin((tkl.arange(5) * 2 + 1) % 5)  # 2
    """
    return _first_index(_fill("argmin", x, within), axes[0], within, torch.argmin)


def _first_index(x: Tensor, axis: int, within: Tensor, function: Any) -> Tensor:
    if not x.shape[axis]:
        return torch.zeros(x.shape[:axis] + x.shape[axis + 1 :], dtype=torch.int64)
    if x.dtype is torch.bool:
        x = x.to(torch.int8)
    # torch may return any of several equal elements.
    extreme = x.gather(axis, function(x, axis, keepdim=True))
    hits = ((x == extreme) | (x != x)) & within
    places = torch.arange(x.shape[axis]).reshape([-1] + [1] * (x.ndim - 1 - axis))
    first = torch.where(hits, places, x.shape[axis]).amin(axis)
    return torch.where(first == x.shape[axis], 0, first)
