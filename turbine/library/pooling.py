"""Pooling of images whose channels are contiguous, as convolution kernels leave them."""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.effects import is_pointwise
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.rules.convolution import per_axis
from turbine.library.nodes import only_user
from turbine.library.windows import Windows, put_channels_last
from turbine.target import Target

aten = torch.ops.aten

B, H, L, C = tkl.symbols("B H L C")  # images, rows and columns of strides, channels
f32 = tkl.f32


@cache
def pool(taps: tuple[int, int], stride: tuple[int, int], divisor: int | None) -> Any:
    """The kernel of sums over a divisor, or else of maxima; a program computes a row."""
    (kh, kw), (down, across) = taps, stride
    rows, columns = H - (kh - 1) // down, L - (kw - 1) // across

    @tk.gen.kernel(rows, B, specialize=(H, L, C))
    def pooling(
        x: tkl.InputBuffer[B, H, down, L, across * C, f32],
        y: tkl.OutputBuffer[B, rows, columns, C, f32],
    ) -> None:
        row, image = tkl.program_id(0), tkl.program_id(1)

        def element(i: int, j: int) -> Any:
            place = image, row + i // down, i % down, j // across, j % across * C
            return tkl.load(x, place, (None, None, None, columns, C))

        first, *others = (element(i, j) for i, j in product(range(kh), range(kw)))
        if divisor is None:
            total = reduce(tkl.maximum, others, first)
        else:
            total = reduce(operator.add, others, first) / divisor
        tkl.store(y, (image, row, 0, 0), total)

    return pooling


# With fewer channels, lanes of vectors are unused.
_LEAST_CHANNELS = 16
# Larger windows would be long code.
_MOST_TAPS = 16


@dataclass(frozen=True)
class Match:
    """Pooling of images from a convolution kernel."""

    node: fx.Node
    x: fx.Node
    windows: Windows
    divisor: int | None  # of sums; None for maxima

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        graph = self.node.graph
        x = self.windows.split(put_channels_last(self.x, self.node), self.node)
        kernel = pool(tuple(self.windows.extents), tuple(self.windows.stride), self.divisor)
        y = emit(graph, kernel.op.op, x, beside=self.node)
        y = emit(graph, aten.permute.default, y, [0, 3, 1, 2], beside=self.node)
        order = suggest_memory_format(self.node.meta["val"])
        return emit(graph, aten.clone.default, y, memory_format=order, beside=self.node)


def find(region: Region) -> Iterator[Match]:
    """Find averages, and maxima whose indices are not used."""
    graph = region.graph.graph
    for node in graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default):
        value = only_user(node)
        if value is not None and value.target is operator.getitem and value.args[1] == 0:
            yield from _match(value, *node.args)
    for node in graph.find_nodes(op="call_function", target=aten.avg_pool2d.default):
        yield from _match_average(node, *node.args)


def _match_average(
    node: fx.Node,
    x: Any,
    taps: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Iterator[Match]:
    count = math.prod(per_axis(taps, 2))
    return _match(node, x, taps, stride, padding, ceil_mode=ceil_mode, divisor=divisor or count)


def _match(
    node: fx.Node,
    x: Any,
    taps: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
    divisor: int | None = None,
) -> Iterator[Match]:
    around = -math.inf if divisor is None else 0.0
    x, margins = _without_padding(x, around)
    value = x.meta["val"]
    is_static = all(isinstance(size, int) for size in value.shape[1:])
    is_plain = not any(padding) and set(dilation) == {1} and not ceil_mode
    taps = per_axis(taps, 2)
    if value.dtype != torch.float32 or not is_static or not is_plain:
        return
    if value.shape[1] < _LEAST_CHANNELS or math.prod(taps) > _MOST_TAPS or not _is_channels_last(x):
        return
    windows = Windows(taps, per_axis(stride, 2) if stride else taps, margins, around)
    yield Match(node, x, windows, divisor)


def _without_padding(x: fx.Node, around: float) -> tuple[fx.Node, list[tuple[int, int]]]:
    """The operand of a padding, and its margins of rows and of columns."""
    none = [(0, 0), (0, 0)]
    if x.target is not aten.constant_pad_nd.default:
        return x, none
    args: Any = x.args
    base, amounts, *value = args
    is_only_around = len(amounts) <= 4 and min(amounts) >= 0 and (value or [0.0]) == [around]
    if not is_only_around or any(not isinstance(amount, int) for amount in amounts):
        return x, none
    left, right, top, bottom = [*amounts, 0, 0][:4]
    return base, [(top, bottom), (left, right)]


def _is_channels_last(x: fx.Node) -> bool:
    """Whether x comes from a kernel of channels-last images, by ops that keep the layout."""
    while is_pointwise(x.target) or x.target in _KEEP_LAYOUT:
        x = x.all_input_nodes[0]
    return x.target is aten.permute.default and x.args[1] == [0, 3, 1, 2]


_KEEP_LAYOUT = {
    aten.squeeze.dim,  # of sequences, which are images of one row
    torch.ops.prims.squeeze.default,
    aten.unsqueeze.default,
    aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default,
    operator.getitem,
}
