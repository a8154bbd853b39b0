"""Interpret ops on dtypes that torch has few kernels for: u16, u32, u64 and 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turbine.kernel.lang import arithmetic, casting, ordering, reductions, scans
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.types import TileType


def call_narrowed(op: Op, args: Sequence[Any], keywords: Mapping[str, Any], types: Any) -> Any:
    """Call the meaning of an op, in a wider dtype where torch has no kernels.

    Small dtypes are computed in a wider one and narrowed. u64 is computed on its bits as i64; ops
    that compare see the sign bit flipped, which makes the order of i64 the order of u64.
    """
    present = {value.dtype for value in _tensors(args)}
    if op in _ANY_TYPE or present.isdisjoint(_WIDER):
        return op.meaning(*args, **keywords)
    if torch.uint64 in present and op in _U64_OPS:
        return _U64_OPS[op](*args)
    flip = _SIGN_BIT if op in _ORDERED else 0
    result = op.meaning(*(widen(value, flip) for value in args), **keywords)
    if isinstance(types, TileType):
        return _narrow(result, types.dtype.torch, flip)
    pairs = zip(result, types, strict=True)
    return tuple(_narrow(one, type.dtype.torch, flip) for one, type in pairs)


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    parts = [list(v) if isinstance(v, (tuple, list)) else [v] for v in args]
    return [v for part in parts for v in part if isinstance(v, Tensor)]


def widen(value: Any, flip: int = 0) -> Any:
    """Convert a tensor, or a tuple of them, to dtypes that torch has kernels for."""
    if isinstance(value, Tensor):
        if value.dtype is torch.uint64:
            return value.view(torch.int64) ^ flip
        return value.to(_WIDER.get(value.dtype, value.dtype))
    if isinstance(value, tuple):
        return tuple(widen(v, flip) for v in value)
    return value


def _narrow(value: Tensor, dtype: torch.dtype, flip: int) -> Tensor:
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
_SIGN_BIT = -(2**63)
# Ops that torch has for every dtype, or that are defined by bits.
_ANY_TYPE = {casting.to_dtype, casting.bitcast}
_ORDERED = {
    *(arithmetic.less, arithmetic.less_equal, arithmetic.greater, arithmetic.greater_equal),
    *(arithmetic.minimum, arithmetic.maximum, arithmetic.clamp),
    *(reductions.max, reductions.min, reductions.argmax, reductions.argmin),
    *(scans.cummax, scans.cummin, ordering.sort_op),
}


def _divide(function: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def divide(x: Tensor, y: Tensor) -> Tensor:
        numerator, divisor = x.numpy(), y.numpy()
        result = function(numerator, np.where(divisor == 0, np.uint64(1), divisor))
        return torch.from_numpy(np.asarray(np.where(divisor == 0, np.uint64(0), result)))

    return divide


def _shift_right(x: Tensor, y: Tensor) -> Tensor:
    bits, by = x.numpy(), y.numpy()
    is_shift = by < np.uint64(64)
    shifted = bits >> np.where(is_shift, by, np.uint64(0))
    return torch.from_numpy(np.asarray(np.where(is_shift, shifted, np.uint64(0))))


# Ops whose result depends on the value of a u64, not only on its bits or its order.
_U64_OPS: dict[Op, Callable[..., Tensor]] = {
    arithmetic.floordiv: _divide(np.floor_divide),
    arithmetic.mod: _divide(np.remainder),
    arithmetic.shift_right: _shift_right,
    arithmetic.abs: lambda x: x,
}
