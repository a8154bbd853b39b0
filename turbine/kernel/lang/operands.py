"""Convert operands of ops to tiles."""

from __future__ import annotations

from typing import Any

from turbine.dtypes import Dtype
from turbine.kernel.lang.casting import to_dtype
from turbine.kernel.lang.constants import number, tile_of
from turbine.kernel.trace.op import check_operand, common_dtype
from turbine.kernel.trace.tracer import Tile


def as_tile(value: Any, dtype: Dtype | None, what: str) -> Tile:
    """Convert a value to a tile of a dtype; numbers become constants."""
    if dtype is None:
        dtype = common_dtype([value], what)
    if isinstance(value, Tile):
        return value if value.dtype == dtype else tile_of(to_dtype(value, dtype))
    check_operand(value, what)
    return tile_of(number(value, dtype))
