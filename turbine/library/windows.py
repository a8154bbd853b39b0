"""Images that windows slide over, with channels as the last axis, split by the stride."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from turbine.capture.nodes import emit

aten = torch.ops.aten


@dataclass(frozen=True)
class Windows:
    """How windows slide over rows and columns; elements around an image have one value."""

    extents: Sequence[int]
    stride: Sequence[int]
    margins: Sequence[tuple[int, int]]  # before and after
    around: float = 0.0

    def count(self, sizes: Sequence[int]) -> list[int]:
        """The windows along each axis."""
        axes = zip(sizes, self.extents, self.stride, self.margins, strict=True)
        return [(n + sum(margin) - extent) // s + 1 for n, extent, s, margin in axes]

    def split(self, x: fx.Node, beside: fx.Node) -> fx.Node:
        """Pad and cut x so that all windows, and no more, are whole strides, and split it.

        The result is [images, rows // stride, stride, columns // stride, stride * channels].
        """
        _, *sizes, channels = x.meta["val"].shape
        counts = self.count(sizes)
        lengths = [
            n + (k - 1) // s for n, k, s in zip(counts, self.extents, self.stride, strict=True)
        ]
        margins = []
        for axis, size in enumerate(sizes):
            before, _ = self.margins[axis]
            after = lengths[axis] * self.stride[axis] - size - before
            if after < 0:
                start_to_end = axis + 1, 0, size + after
                x = emit(beside.graph, aten.slice.Tensor, x, *start_to_end, beside=beside)
            margins.append((before, max(after, 0)))
        if any(map(any, margins)):
            amounts = [0, 0, *margins[1], *margins[0]]
            pad = aten.constant_pad_nd.default
            x = emit(beside.graph, pad, x, amounts, self.around, beside=beside)
        (rows, columns), (down, across) = lengths, self.stride
        phases = [-1, rows, down, columns, across * channels]
        return emit(beside.graph, aten.view.default, pack(x, beside), phases, beside=beside)


def pack(x: fx.Node, beside: fx.Node) -> fx.Node:
    """Make a tensor contiguous."""
    form = torch.contiguous_format
    return emit(beside.graph, aten.clone.default, x, memory_format=form, beside=beside)


def put_channels_last(x: fx.Node, beside: fx.Node) -> fx.Node:
    """Images, or sequences as images of one row, with channels as the last axis."""
    if x.meta["val"].dim() < 4:
        x = emit(beside.graph, aten.unsqueeze.default, x, 2, beside=beside)
    return emit(beside.graph, aten.permute.default, x, [0, 2, 3, 1], beside=beside)
