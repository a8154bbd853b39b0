"""Buffers of an interpreted kernel, with the writer and the reader of each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turbine.dtypes import Dtype
from turbine.kernel.trace.types import BufferType, tensor_of


@dataclass
class Memory:
    """A buffer, with the program that wrote and read each element.

    `writer` is NOBODY, CALLER, the number of a program, or negative for atomics. `reader` is
    NOBODY, SEVERAL, or the number of a program.
    """

    name: str
    tensor: Tensor
    writer: Tensor
    reader: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.reader = torch.full_like(self.writer, NOBODY)

    @staticmethod
    def of(name: str, type: BufferType, given: Tensor | None, shape: Sequence[int]) -> Memory:
        """Wrap the caller's tensor, or allocate an uninitialized one."""
        if given is not None:
            return Memory(name, given, torch.full(given.shape, CALLER))
        assert isinstance(type.dtype, Dtype)
        if type.fill is not None:
            filled = tensor_of(type.fill, type.dtype).repeat(tuple(shape))
            return Memory(name, filled, torch.full(filled.shape, CALLER))
        empty = fill_poison(torch.empty(tuple(shape), dtype=type.dtype.torch))
        return Memory(name, empty, torch.full(empty.shape, NOBODY))


NOBODY, CALLER, SEVERAL = -1, -2, -2
# The writer of elements that atomics of several programs changed; of one program: `by_atomic`.
SHARED = -(2**62)


def by_atomic(number: int) -> int:
    """The writer of elements that the atomics of one program changed."""
    return -3 - number


def fill_poison(tensor: Tensor) -> Tensor:
    """Fill a tensor with values that expose uninitialized reads: nan, or an unlikely number."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype is torch.bool else 85)


# Integers with the bits of dtypes that torch cannot index.
BITS = {
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
