"""Copy windows of images to columns of a matrix, and add them up again (im2col, col2im).

For a stride of s, images are split into s phases along an axis, so that a tap of all windows is a
block of one phase.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

B, C = tkl.symbols("B C")  # images and channels
LENGTHS = tkl.symbols("H L D")  # sizes of a phase
T = tkl.types.T
Sizes = tuple[int, ...]


@cache
def windows_to_columns(
    taps: Sizes, stride: Sizes, dilation: Sizes, for_gradient: bool = False
) -> tk.Kernel:
    """The kernel of `im2col`; a program copies a channel of an image.

    For gradients, programs have another order. The compiler would take equal calls for one, and
    keep columns, which are many times as large as the images, from the forward pass on.
    """
    lengths, counts = _sizes(taps, stride, dilation)

    grid, order = ((C, B), (1, 0)) if for_gradient else ((B, C), (0, 1))

    @tk.gen.kernel(*grid, specialize=lengths)
    def im2col(
        x: tkl.InputBuffer[B, C, *stride, *lengths, T],
        y: tkl.OutputBuffer[C, *taps, B, *counts, T],
    ) -> None:
        def copy(tap: Any, place: Any) -> None:
            image, channel = (tkl.program_id(axis) for axis in order)
            block = (None,) * (2 + len(stride)) + counts
            values = tkl.load(x, (image, channel, *place), block)
            tkl.store(y, (channel, *tap, image, *[0] * len(counts)), values)

        _for_each_tap(taps, stride, dilation, copy)

    return im2col


@cache
def columns_to_windows(taps: Sizes, stride: Sizes, dilation: Sizes) -> tk.Kernel:
    """The kernel of `col2im`; a program adds up a channel of an image."""
    lengths, counts = _sizes(taps, stride, dilation)

    @tk.gen.kernel(B, C, specialize=lengths)
    def col2im(
        y: tkl.InputBuffer[C, *taps, B, *counts, T],
        x: tkl.OutputBuffer[B, C, *stride, *lengths, T],
    ) -> None:
        image, channel = tkl.program_id(0), tkl.program_id(1)

        def add(tap: Any, place: Any) -> None:
            start = image, channel, *place
            block = (None,) * (2 + len(stride)) + counts
            values = tkl.load(y, (channel, *tap, image, *[0] * len(counts)), block)
            tkl.store(x, start, tkl.load(x, start, block) + values)

        whole = *stride, *lengths
        tkl.store(x, (image, channel, *[0] * len(whole)), tkl.zeros(whole, T))
        _for_each_tap(taps, stride, dilation, add)

    return col2im


def _sizes(taps: Sizes, stride: Sizes, dilation: Sizes) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The sizes of a phase, and the number of windows along each axis."""
    lengths = LENGTHS[: len(taps)]
    axes = zip(lengths, taps, stride, dilation, strict=True)
    return lengths, tuple(length - (k - 1) * d // s for length, k, s, d in axes)


def _for_each_tap(
    taps: Sizes, stride: Sizes, dilation: Sizes, body: Callable[[Any, Any], None]
) -> None:
    """Call body(tap, place): the index of a tap, and its phase and offset in the phase."""
    for tap in product(*map(range, taps)):
        starts = [(i * d, s) for i, d, s in zip(tap, dilation, stride, strict=True)]
        body(tap, (*(at % s for at, s in starts), *(at // s for at, s in starts)))


def im2col(
    phases: Tensor, taps: Sequence[int], dilation: Sequence[int], *, for_gradient: bool
) -> Any:
    """(Images, channels, *stride, *lengths) to (channels, taps, images, *windows)."""
    axes = len(taps)
    stride = tuple(phases.shape[2 : 2 + axes])
    kernel = windows_to_columns(tuple(taps), stride, tuple(dilation), for_gradient)
    return kernel(phases.contiguous()).flatten(1, axes)


def col2im(
    values: Tensor, taps: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Any:
    """Undo `im2col`, with a sum where windows overlap."""
    kernel = columns_to_windows(tuple(taps), tuple(stride), tuple(dilation))
    return kernel(values.reshape([values.shape[0], *taps, *values.shape[2:]]))


KERNELS["im2col"] = im2col
KERNELS["col2im"] = col2im
