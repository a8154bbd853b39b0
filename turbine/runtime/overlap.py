"""Decide whether tensors share memory, from addresses, sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

Span = tuple[int, int]  # the first address and the one after the last

# Limit of numpy's search for a common element of two strided tensors.
_MOST_WORK = 10_000
# Added to addresses, which may be offsets in a storage: numpy does not accept 0.
_NOT_NULL = 64


@dataclass(frozen=True)
class Layout:
    """The address of a tensor's first element, its shape, and strides in bytes."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def span(self) -> Span:
        """The range of addresses of the elements; (0, 0) if empty."""
        if 0 in self.shape:
            return 0, 0
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        first = self.start + sum(step for step in steps if step < 0)
        return first, self.start + sum(step for step in steps if step > 0) + self.itemsize


def overlaps(span: Span, taken: Sequence[Span]) -> bool:
    """Whether the span overlaps one of `taken`."""
    first, last = span
    for start, end in taken:  # noqa: SIM110 - half the time of any() on this path
        if first < end and start < last:
            return True
    return False


def share_memory(one: Layout, other: Layout) -> bool:
    """Whether two tensors share an element's memory; True if in doubt.

    Spans decide most cases. For interleaved views, such as x[::2] and x[1::2], numpy solves for a
    common address.
    """
    if not overlaps(one.span, [other.span]):
        return False
    first, second = (numpy.asarray(_Described(layout)) for layout in (one, other))
    limit: Any = _MOST_WORK  # numpy's stubs only know the limits that are names
    try:
        return numpy.shares_memory(first, second, limit)
    except numpy.exceptions.TooHardError:
        return True


def overlaps_itself(layout: Layout) -> bool:
    """Whether two elements of a tensor may share memory, as after `expand`."""
    steps = [(abs(s), n) for n, s in zip(layout.shape, layout.strides, strict=True) if n > 1]
    reach = layout.itemsize
    for stride, size in sorted(steps):
        if stride < reach:
            return 0 not in layout.shape
        reach += (size - 1) * stride
    return False


class _Described:
    """A layout as numpy's array interface; the memory is not read."""

    def __init__(self, layout: Layout) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": f"|V{layout.itemsize}",
            "data": (layout.start + _NOT_NULL, True),
            "shape": layout.shape,
            "strides": layout.strides,
        }
