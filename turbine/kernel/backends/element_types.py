"""Ops on elements that torch has few kernels for: u16, u32, u64 and floats of eight bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turbine.kernel.lang import arithmetic, casting, ordering, reductions, scans
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.types import TileType


def call_narrowed(made: Op, args: Sequence[Any], keywords: Mapping[str, Any], types: Any) -> Any:
    """Call a meaning; where torch has no kernels for a type, in one that it has.

    Small types are computed in a wider one and cut back. Bits of u64 are those of i64; what asks
    for their order sees numbers with the first bit flipped, which are in order as i64.
    """
    given = {value.dtype for value in _tensors(args)}
    if made in _ANY_TYPE or given.isdisjoint(_WIDER):
        return made.meaning(*args, **keywords)
    if torch.uint64 in given and made in _OF_U64:
        return _OF_U64[made](*args)
    flip = _FIRST_BIT if made in _ORDERED else 0
    result = made.meaning(*(widen(value, flip) for value in args), **keywords)
    if isinstance(types, TileType):
        return _cut_back(result, types.dtype.torch, flip)
    pairs = zip(result, types, strict=True)
    return tuple(_cut_back(one, type.dtype.torch, flip) for one, type in pairs)


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    parts = [list(v) if isinstance(v, (tuple, list)) else [v] for v in args]
    return [v for part in parts for v in part if isinstance(v, Tensor)]


def widen(value: Any, flip: int = 0) -> Any:
    """A tensor, or a tuple of them, of types that torch has kernels for."""
    if isinstance(value, Tensor):
        if value.dtype is torch.uint64:
            return value.view(torch.int64) ^ flip
        return value.to(_WIDER.get(value.dtype, value.dtype))
    if isinstance(value, tuple):
        return tuple(widen(v, flip) for v in value)
    return value


def _cut_back(value: Tensor, dtype: torch.dtype, flip: int) -> Tensor:
    return (value ^ flip).view(dtype) if dtype is torch.uint64 else value.to(dtype)


_WIDER = {
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}
_FIRST_BIT = -(2**63)
# Ops that torch has for every type, and those that mean the bits a type has.
_ANY_TYPE = {casting.to_dtype, casting.bitcast}
_ORDERED = {
    *(arithmetic.less, arithmetic.less_equal, arithmetic.greater, arithmetic.greater_equal),
    *(arithmetic.minimum, arithmetic.maximum, arithmetic.clamp),
    *(reductions.max, reductions.min, reductions.argmax, reductions.argmin),
    *(scans.cummax, scans.cummin, ordering.sort_op),
}


def _divide(function: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def divide(x: Tensor, y: Tensor) -> Tensor:
        above, below = x.numpy(), y.numpy()
        result = function(above, np.where(below == 0, np.uint64(1), below))
        return torch.from_numpy(np.asarray(np.where(below == 0, np.uint64(0), result)))

    return divide


def _shift_right(x: Tensor, y: Tensor) -> Tensor:
    bits, by = x.numpy(), y.numpy()
    is_shift = by < np.uint64(64)
    shifted = bits >> np.where(is_shift, by, np.uint64(0))
    return torch.from_numpy(np.asarray(np.where(is_shift, shifted, np.uint64(0))))


# What depends on the number that the bits of u64 are, otherwise than by order.
_OF_U64: dict[Op, Callable[..., Tensor]] = {
    arithmetic.floordiv: _divide(np.floor_divide),
    arithmetic.mod: _divide(np.remainder),
    arithmetic.shift_right: _shift_right,
    arithmetic.abs: lambda x: x,
}
