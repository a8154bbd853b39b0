"""Bounds checks of indices that come from data.

A block that extends beyond its buffer is masked at the edge. An index that was loaded must be in
range, as in PyTorch; otherwise the error names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from turbine import config, errors
from turbine.algebra import ONE, Expr
from turbine.kernel.lang.affine import affine_of
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.shapes import align_to
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import declare_internal
from turbine.kernel.trace.tracer import Buffer, IndexExpr, Tile, user_line
from turbine.kernel.trace.types import I64
from turbine.kernel.trace.validity import Valid, axes_of, both


def wants_check(check: Any, what: str, *, has_other: bool = False) -> bool:
    """Whether to check indices: by default unless `other` replaces bad ones."""
    if not isinstance(check, bool) and check is not None:
        raise errors.KernelError(
            f"{what} has {check=}",
            where=user_line(),
            hint="check=True checks every index, check=False none, None loaded ones",
        )
    if check is None:
        return config.current().check_indices and not has_other
    return check


def check_indices(
    buffer: Buffer,
    places: Sequence[Expr | Tile | None],
    shape: Sequence[Expr],
    valid: Valid,
    *,
    always: bool,
) -> None:
    """Check the index along each axis, or none for None, for the valid lanes of a shape.

    Unless `always`, indices that do not depend on data are not checked.
    """
    tiles = {
        axis: align_to(as_tile(_as_value(place), I64, "load"), shape)
        for axis, place in enumerate(places)
        if place is not None and (isinstance(place, Tile) or always or not _is_static(place))
    }
    accessed = both([valid, *(tile.valid for tile in tiles.values())])
    for axis, tile in tiles.items():
        if always or not _is_static(tile):
            _check(buffer, axis, tile, shape, accessed, always)


def _as_value(place: Expr | Tile) -> Any:
    return place if isinstance(place, Tile) else IndexExpr(place)


def _check(
    buffer: Buffer, axis: int, index: Tile, shape: Sequence[Expr], accessed: Valid, always: bool
) -> None:
    """Add a check along the axes that the index and its masks depend on."""
    wide = axes_of(index).union(*map(axes_of, accessed.masks))
    sizes = tuple(size if place in wide else ONE for place, size in enumerate(shape))
    bounds = tuple(b for b in accessed.bounds if b.axis is None or b.axis in wide)
    check_index.record(index, buffer, axis, sizes, always, bounds=bounds, masks=accessed.masks)


def _is_static(place: Expr | Tile) -> bool:
    """Whether an index does not depend on data: only on sizes, program ids and loop counters."""
    if isinstance(place, Expr):
        ranges = tracer.current("an index").ranges
        return all(s.kind != "data" and (s.kind != "loop" or s in ranges) for s in place.symbols)
    affine = affine_of(place.node)
    return affine is not None and _is_static(affine.base)


@declare_internal
def check_index(
    index: Tensor, buffer: Tensor, axis: int, shape: Sequence[int], always: bool
) -> None:
    """Raise an error if an index, broadcast to a shape, is out of range."""
