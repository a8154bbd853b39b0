"""Values of windows as values of the elements that they cover, for gradients of pooling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from turbine.capture.rules.convolution import Windows

aten = torch.ops.aten


@dataclass(frozen=True)
class WindowGrid:
    """The elements of an input in cells of one stride, and the windows that cover them.

    An element `cell * stride + offset - padding` is covered by the window of its cell and by some
    that start a few cells back. Tensors have two axes for each one of the input: cell and offset.
    """

    windows: Windows
    sizes: Sequence[int]  # of the input

    def shifts(self) -> Iterator[tuple[int, ...]]:
        """How many cells back along each axis a window may start."""
        return itertools.product(*(range(reach + 1) for reach in self._reaches()))

    def pad(self, values: Tensor, outside: float) -> Tensor:
        """The values of windows, and `outside` where a cell has none."""
        margins: list[int] = []
        counts = values.shape[-len(self.sizes) :]
        for reach, cells, count in zip(self._reaches(), self._cells(), counts, strict=True):
            margins = [reach, max(cells - count, 0), *margins]
        return aten.constant_pad_nd(values, margins, outside) if any(margins) else values

    def read(self, padded: Tensor, back: Sequence[int]) -> Tensor:
        """For each cell, the value of the window that starts so many cells back."""
        axes = zip(back, self._reaches(), self._cells(), strict=True)
        for axis, (shift, reach, cells) in enumerate(axes, start=padded.dim() - len(self.sizes)):
            padded = aten.slice(padded, axis, reach - shift, reach - shift + cells)
        for axis in range(-1, -2 * len(self.sizes), -2):
            padded = padded.unsqueeze(axis)
        return padded

    def places(self, device: torch.device) -> Tensor:
        """The flat index of each element."""
        is_small = prod(self.sizes) < 2**31  # narrow integers are compared faster
        place = torch.zeros([], dtype=torch.int32 if is_small else torch.int64, device=device)
        for axis, (size, step) in enumerate(zip(self.sizes, self.windows.stride, strict=True)):
            cell = self._along(2 * axis, self._cells()[axis], place.dtype, device)
            offset = self._along(2 * axis + 1, step, place.dtype, device)
            place = place * size + (cell * step + offset - self.windows.padding[axis])
        return place

    def is_covered(self, back: Sequence[int], device: torch.device) -> Tensor:
        """Whether the window that starts so many cells back covers an element; not if dilated."""
        covered = torch.ones([], dtype=torch.bool, device=device)
        axes = zip(back, self.windows.taps, self.windows.stride, strict=True)
        for axis, (shift, taps, step) in enumerate(axes):
            offset = self._along(2 * axis + 1, step, torch.int32, device)
            covered = covered & (offset + shift * step < taps)
        return covered

    def join(self, cells: Tensor, x: Tensor) -> Tensor:
        """The elements of all cells, in the shape of x."""
        first = x.dim() - len(self.sizes)
        spans = [n * step for n, step in zip(self._cells(), self.windows.stride, strict=True)]
        wide = cells.reshape([*x.shape[:first], *spans])
        for axis, (padding, size) in enumerate(zip(self.windows.padding, self.sizes, strict=True)):
            wide = aten.slice(wide, first + axis, padding, padding + size)
        return wide

    def _reaches(self) -> list[int]:
        axes = zip(self.windows.taps, self.windows.dilation, self.windows.stride, strict=True)
        return [(taps - 1) * dilation // step for taps, dilation, step in axes]

    def _cells(self) -> list[int]:
        axes = zip(self.sizes, self.windows.padding, self.windows.stride, strict=True)
        return [(size - 1 + padding) // step + 1 for size, padding, step in axes]

    def _along(self, axis: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        shape = [1] * (2 * len(self.sizes))
        shape[axis] = count
        return torch.arange(count, dtype=dtype, device=device).view(shape)
