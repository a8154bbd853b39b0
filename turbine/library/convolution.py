"""Convolutions of images whose channels are contiguous: a sum of matmuls, one for each tap.

Windows are not copied to rows of a matrix (im2col): a tap reads channels where they are. For a
stride of s, every s-th row of an image goes to one phase, and s columns are joined to one, so that
the columns that a tap reads are neighbours. The planes of a volume are images, whose channels are
those of all planes that a window covers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import suggest_memory_format

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture import convolutions
from turbine.capture.convolutions import Convolution
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.sizes import hint
from turbine.library import tail
from turbine.library.nodes import constant_nodes, convert
from turbine.library.tail import Tail
from turbine.library.windows import Windows, pack, put_channels_last
from turbine.target import Target

aten = torch.ops.aten

B, H, L = tkl.symbols("B H L")  # images, rows and columns of a phase
D, C = tkl.symbols("D C")  # channels of joined columns, and of one
N, P, W = tkl.symbols("N P W")  # channels of the result, in panels of W
BH, BL = tkl.symbols("BH BL")
f32 = tkl.f32


@dataclass(frozen=True)
class End:
    """What a kernel does with a sum before it stores it."""

    has_residual: bool = False  # to be added
    least: float | None = None
    most: float | None = None

    def apply(self, sums: Any, residual: Any, place: Sequence[Any], shape: Sequence[Any]) -> Any:
        """The values to store at a place."""
        if self.has_residual:
            sums = sums + tkl.load(residual, place, shape)
        if self.least is not None:
            sums = tkl.maximum(sums, self.least)
        return sums if self.most is None else tkl.minimum(sums, self.most)


def _declare(
    compute: Callable[..., None], end: End, x: Any, weight: Any, y: Any, *grid: Any, **options: Any
) -> Any:
    """The kernel of compute(x, weight, bias, residual, y); without residuals that is None."""
    outputs = y[-1]

    def with_residual(
        x: tkl.InputBuffer[*x, f32],
        weight: tkl.InputBuffer[*weight, f32],
        bias: tkl.InputBuffer[outputs, f32],
        residual: tkl.InputBuffer[*y, f32],
        y: tkl.OutputBuffer[*y, f32],
    ) -> None:
        compute(x, weight, bias, residual, y)

    def without(
        x: tkl.InputBuffer[*x, f32],
        weight: tkl.InputBuffer[*weight, f32],
        bias: tkl.InputBuffer[outputs, f32],
        y: tkl.OutputBuffer[*y, f32],
    ) -> None:
        compute(x, weight, bias, None, y)

    function = with_residual if end.has_residual else without
    function.__name__ = compute.__name__
    return tk.gen.kernel(*grid, **options)(function)


@dataclass(frozen=True)
class Form:
    """What a kernel is made for. Along an axis, the stride or the dilation is 1."""

    taps: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    panels: int = 1  # of each group, if there are several
    end: End = End()

    @property
    def extents(self) -> tuple[int, int]:
        """The rows and columns that a window covers."""
        (kh, kw), (high, wide) = self.taps, self.dilation
        return (kh - 1) * high + 1, (kw - 1) * wide + 1

    @property
    def sizes(self) -> tuple[Any, Any]:
        """The rows and columns of the result."""
        (high, wide), (down, across) = self.extents, self.stride
        return H - (high - 1) // down, L - (wide - 1) // across


@cache
def full(form: Form, block: tuple[int, int]) -> Any:
    """The kernel for windows over all channels; a program computes a block of one panel."""
    (kh, kw), (down, across), (high, wide) = form.taps, form.stride, form.dilation
    rows, columns = form.sizes

    def convolution(x: Any, weight: Any, bias: Any, residual: Any, y: Any) -> None:
        panel, column, row = tkl.program_id(0), tkl.program_id(1) * BL, tkl.program_id(2) * BH
        image = tkl.program_id(3)
        group = panel // form.panels if form.groups > 1 else 0

        def add_taps(i: int, j: int, sums: Any) -> Any:
            """Add the taps of one phase."""

            @tkl.for_loop(0, len(range(i, kh, down)), init_args=[sums])
            def over_rows(m: Any, sums: Any) -> Any:
                @tkl.for_loop(0, len(range(j, kw, across)), init_args=[sums])
                def over_columns(n: Any, sums: Any) -> Any:
                    channel = (j * form.groups + group) * C
                    place = image, i, row + m * high, column + n * wide, channel
                    values = tkl.load(x, place, (None, None, BH, BL, C))
                    tap = panel, m * down + i, n * across + j, 0, 0
                    return tkl.dot(values, tkl.load(weight, tap, (None, None, None, C, W)), sums)

                return over_columns[0]

            return over_rows[0]

        sums = tkl.zeros((BH, BL, W), f32)
        for i in range(min(down, kh)):
            for j in range(min(across, kw)):
                sums = add_taps(i, j, sums)
        sums = sums + tkl.load(bias, (panel * W,), (W,))
        own = image, row, column, panel * W
        tkl.store(y, own, form.end.apply(sums, residual, own, (None, BH, BL, W)))

    buffers = (B, down, H, L, D), (P, kh, kw, C, W), (B, rows, columns, N)
    grid = P, columns // BL, rows // BH, B
    blocks = {BH: block[0], BL: block[1]}
    return _declare(convolution, form.end, *buffers, *grid, blocks=blocks, specialize=(H, L, D))


@cache
def depthwise(form: Form) -> Any:
    """The kernel for a convolution of every channel by itself; a program computes a row."""
    (kh, kw), (down, across), (high, wide) = form.taps, form.stride, form.dilation
    rows, columns = form.sizes

    def depthwise_convolution(x: Any, weight: Any, bias: Any, residual: Any, y: Any) -> None:
        row, image = tkl.program_id(0), tkl.program_id(1)
        sums = tkl.load(bias, (0,), (C,))
        for i, j in product(range(kh), range(kw)):
            below, right = i * high, j * wide
            place = image, below % down, row + below // down, right // across, right % across * C
            values = tkl.load(x, place, (None, None, None, columns, C))
            sums = sums + values * tkl.load(weight, (i, j, 0), (None, None, C))
        own = image, row, 0, 0
        tkl.store(y, own, form.end.apply(sums, residual, own, (None, None, columns, C)))

    buffers = (B, down, H, L, across * C), (kh, kw, C), (B, rows, columns, C)
    return _declare(depthwise_convolution, form.end, *buffers, rows, B, specialize=(H, L, C))


_FLOAT_BYTES = 4
# Columns of a panel in vectors at most, by the bytes of a vector: with seven rows they fill the
# registers.
_MOST_VECTORS = {16: 2, 32: 1, 64: 4}
_NEAR_BYTES = 32 * 1024  # of the L1 cache at least
# Rows of the smaller register tiles.
_FEW_ROWS = 8
_MOST_STRIDE = 2
# Of images and weights. Sums are in f32, as in PyTorch.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Smaller groups leave most lanes of a vector unused.
_LEAST_OUTPUTS = 4
# With fewer channels, those of all columns of a window are joined.
_FEW_CHANNELS = 8


@dataclass(frozen=True)
class Match:
    """A convolution that a kernel computes, with what follows it."""

    found: Convolution
    tail: Tail

    @property
    def node(self) -> fx.Node:
        """The node whose value the kernel computes."""
        return self.tail.node

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        call, value = _Call(self.found, self.tail), self.node.meta["val"]
        y = call.write(target)
        if value.dim() == _AXES_OF_VOLUMES:
            y = call.add(aten.view.default, y, [-1, *value.shape[2:], value.shape[1]])
            y = call.add(aten.permute.default, y, [0, 4, 1, 2, 3])
        else:
            y = call.add(aten.permute.default, y, [0, 3, 1, 2])
        if value.dim() == _AXES_OF_LINES:
            y = call.add(aten.squeeze.dim, y, 2)
        y = convert(y, value.dtype, self.node)
        return call.add(aten.clone.default, y, memory_format=suggest_memory_format(value))


class _Call:
    """Writes the call of a kernel, with operands of f32 in its layout."""

    def __init__(self, found: Convolution, tail: Tail) -> None:
        self.node, self.residual = found.node, tail.residual
        self.weight = convert(found.weight, torch.float32, self.node)
        self.bias = found.bias and convert(found.bias, torch.float32, self.node)
        self.stride, self.padding, self.dilation = found.stride, found.padding, found.dilation
        self.groups, self.is_depthwise = found.groups, _is_depthwise(found)
        self.end = End(self.residual is not None, tail.least, tail.most)
        self.join_factors(tail)
        self.x = convert(self.put_channels_last(found.x), torch.float32, self.node)
        if len(self.stride) == 1:
            self.weight = self.add(aten.unsqueeze.default, self.weight, 2)
            self.stride, self.padding = (1, *self.stride), (0, *self.padding)
            self.dilation = (1, *self.dilation)
        elif len(self.stride) > 2:
            self.join_planes()
        if self.residual is not None:
            self.residual = self.pack(self.put_channels_last(self.residual))
            self.residual = self.as_images(self.residual)

    def put_channels_last(self, x: fx.Node) -> fx.Node:
        """Images, or volumes, with channels as the last axis."""
        if x.meta["val"].dim() < _AXES_OF_VOLUMES:
            return put_channels_last(x, self.node)
        return self.add(aten.permute.default, x, [0, 2, 3, 4, 1])

    def as_images(self, x: fx.Node) -> fx.Node:
        """Planes of volumes as images."""
        if x.meta["val"].dim() < _AXES_OF_VOLUMES:
            return x
        return self.add(aten.view.default, x, [-1, *x.meta["val"].shape[2:]])

    def join_planes(self) -> None:
        """Make the planes of a window channels of one image."""
        count, step, margin, dilation = (
            one[0] for one in (self.taps, self.stride, self.padding, self.dilation)
        )
        padded = self.x
        if margin:
            amounts = [0, 0, 0, 0, 0, 0, margin, margin]
            padded = self.add(aten.constant_pad_nd.default, self.x, amounts)
        last = padded.meta["val"].shape[1] - (count - 1) * dilation
        slices = [
            self.add(aten.slice.Tensor, padded, 1, start, start + last, step)
            for start in range(0, count * dilation, dilation)
        ]
        self.x = self.as_images(self.pack(self.add(aten.cat.default, slices, 4)))
        outputs, channels, _, *taps = self.weight.meta["val"].shape
        weight = self.add(aten.permute.default, self.weight, [0, 2, 1, 3, 4])
        self.weight = self.add(
            aten.view.default, self.pack(weight), [outputs, count * channels, *taps]
        )
        self.stride, self.padding = self.stride[1:], self.padding[1:]
        self.dilation = self.dilation[1:]

    def join_factors(self, tail: Tail) -> None:
        """Multiply the weight and the bias by the scale of the tail, and add its shift."""
        if tail.scale is not None:
            scale = self.add(aten.view.default, tail.scale, [-1])
            shape = [-1, *[1] * (self.weight.meta["val"].dim() - 1)]
            by_output = self.add(aten.view.default, scale, shape)
            self.weight = self.add(aten.mul.Tensor, self.weight, by_output)
            self.bias = self.bias and self.add(aten.mul.Tensor, self.bias, scale)
        if tail.shift is not None:
            shift = self.add(aten.view.default, tail.shift, [-1])
            self.bias = self.add(aten.add.Tensor, self.bias, shift) if self.bias else shift

    @property
    def taps(self) -> list[int]:
        """The taps of a window along each axis."""
        return list(self.weight.meta["val"].shape[2:])

    def add(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add an op to the graph."""
        return emit(self.node.graph, op, *args, beside=self.node, **kwargs)

    def pack(self, x: fx.Node) -> fx.Node:
        """Make a tensor contiguous."""
        return pack(x, self.node)

    def write(self, target: Target) -> fx.Node:
        """Add the call; return its result, whose last axis are channels."""
        outputs, channels, *_ = self.weight.meta["val"].shape
        if channels < _FEW_CHANNELS and self.groups == 1:
            self.join_columns()
        bias = self.bias or self.add(aten.full.default, [outputs], 0.0)
        kernel, weight = self.depthwise() if self.is_depthwise else self.full(target)
        residual = [] if self.residual is None else [self.residual]
        return self.add(kernel.op.op, self.split_phases(), weight, bias, *residual)

    def depthwise(self) -> tuple[Any, fx.Node]:
        """The kernel for every channel by itself, and its weight."""
        weight = self.add(aten.squeeze.dim, self.weight, 1)
        weight = self.pack(self.add(aten.permute.default, weight, [1, 2, 0]))
        return depthwise(self.form()), weight

    def full(self, target: Target) -> tuple[Any, fx.Node]:
        """The kernel for all channels, and its weight."""
        weight = self.pack_panels(target)
        panels = weight.meta["val"].shape[0] // self.groups
        return full(self.form(panels if self.groups > 1 else 1), (1, self.block())), weight

    def block(self) -> int:
        """The columns of the result that a program computes."""
        _, columns = self.windows(self.form()).count(self.x.meta["val"].shape[1:3])
        return _block(columns)

    def form(self, panels: int = 1) -> Form:
        """What the kernel is made for."""
        (kh, kw), (down, across), (high, wide) = self.taps, self.stride, self.dilation
        groups = 1 if self.is_depthwise else self.groups
        return Form((kh, kw), (down, across), (high, wide), groups, panels, self.end)

    def join_columns(self) -> None:
        """Make the columns of a window channels of one column."""
        (_, count), (_, step), (_, margin) = self.taps, self.stride, self.padding
        _, dilation = self.dilation
        padded = self.add(aten.constant_pad_nd.default, self.x, [0, 0, margin, margin])
        last = padded.meta["val"].shape[2] - (count - 1) * dilation
        slices = [
            self.add(aten.slice.Tensor, padded, 2, start, start + last, step)
            for start in range(0, count * dilation, dilation)
        ]
        self.x = self.add(aten.cat.default, slices, 3)
        outputs, channels, rows, _ = self.weight.meta["val"].shape
        weight = self.add(aten.permute.default, self.weight, [0, 3, 1, 2])
        sizes = [outputs, count * channels, rows, 1]
        self.weight = self.add(aten.view.default, self.pack(weight), sizes)
        self.stride, self.padding = (self.stride[0], 1), (self.padding[0], 0)
        self.dilation = (self.dilation[0], 1)

    def windows(self, form: Form) -> Windows:
        """How windows slide over the images."""
        margins = [(margin, margin) for margin in self.padding]
        return Windows(form.extents, form.stride, margins)

    def split_phases(self) -> fx.Node:
        """The images, padded and with their rows in phases."""
        x = self.windows(self.form()).split(self.x, self.node)
        return self.pack(self.add(aten.permute.default, x, [0, 2, 1, 3, 4]))

    def pack_panels(self, target: Target) -> fx.Node:
        """The weight in panels, which are computed when an artifact is loaded."""
        outputs, channels, *taps = self.weight.meta["val"].shape
        if self.groups == 1:
            width = _panel_width(outputs, channels, self.block(), target)
        else:
            width = _dividing_width(outputs // self.groups, target)
        panels = -(-outputs // width)
        weight = self.add(aten.permute.default, self.weight, [2, 3, 1, 0])
        padded = self.add(aten.constant_pad_nd.default, weight, [0, panels * width - outputs])
        split = self.add(aten.view.default, padded, [*taps, channels, panels, width])
        return self.pack(self.add(aten.permute.default, split, [3, 0, 1, 2, 4]))


def _panel_width(outputs: int, channels: int, block: int, target: Target) -> int:
    """The columns of a panel, such that few are unused and the weights of a tap stay near."""
    lanes = target.vector_bytes // _FLOAT_BYTES
    # Weights that do not stay near are read for each register tile: those of few rows are wider.
    least = 3 if block <= _FEW_ROWS else 2
    most = max(least, _NEAR_BYTES // (channels * target.vector_bytes))
    vectors = range(1, min(most, _MOST_VECTORS[target.vector_bytes]) + 1)
    # Loads of x take about a quarter of the time of the fmas of a vector.
    return min(vectors, key=lambda n: -(-outputs // (n * lanes)) * (n + 0.25)) * lanes


def _dividing_width(outputs: int, target: Target) -> int:
    """The columns of a panel of a group, which end where the group does."""
    lanes = target.vector_bytes // _FLOAT_BYTES
    widths = range(1, _MOST_VECTORS[target.vector_bytes] * lanes + 1)
    return max(
        (n for n in widths if outputs % n == 0), key=lambda n: (n % lanes == 0, n), default=outputs
    )


def _block(columns: int) -> int:
    """Columns of a block: whole register tiles of 7 or 8 rows, with the fewest columns unused."""
    if columns <= 10:  # one register tile
        return columns
    return min((14, 16, 7, 8), key=lambda size: -columns % size)


def find(region: Region) -> Iterator[Match]:
    """Find convolutions whose weights are constant, or packed in little time."""
    constant, claimed = constant_nodes(region), set[fx.Node]()
    for found in convolutions.find(region.graph.graph):
        x, weight = found.x.meta["val"], found.weight.meta["val"]
        if not supports(x, weight, found.stride, found.dilation, found.groups):
            continue
        if found.weight in constant or _is_depthwise(found) or _pays_for_packing(found):
            yield Match(found, tail.find(found.node, constant, claimed))


def supports(
    x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Whether there is a kernel: for images of static size, and volumes without groups."""
    is_static = all(isinstance(size, int) for size in x.shape[1:])
    has_stride = max(stride) <= _MOST_STRIDE
    outputs, channels = weight.shape[:2]
    is_depthwise = groups == outputs and channels == 1
    has_panels = groups == 1 or is_depthwise or outputs // groups >= _LEAST_OUTPUTS
    has_axes = x.dim() < _AXES_OF_VOLUMES or groups == 1
    is_plain = all(1 in pair for pair in zip(stride, dilation, strict=True))
    return x.dtype in _DTYPES and is_static and has_stride and is_plain and has_panels and has_axes


_AXES_OF_LINES, _AXES_OF_VOLUMES = 3, 5


def _is_depthwise(found: Convolution) -> bool:
    outputs, channels = found.weight.meta["val"].shape[:2]
    return bool(found.groups == outputs > 1 and channels == 1)


def _pays_for_packing(found: Convolution) -> bool:
    """Whether the kernel is faster although it packs the weight in every call."""
    outputs, channels, *_ = found.weight.meta["val"].shape
    is_wide = outputs >= _MANY_OUTPUTS and channels >= _FEW_CHANNELS
    return bool(is_wide and _count_windows(found.node.meta["val"]) >= _MANY_WINDOWS)


def _count_windows(y: Tensor) -> int:
    """The windows of a convolution with this result, at the example's sizes."""
    return math.prod(map(hint, (y.shape[0], *y.shape[2:])))


# Packing a weight takes as long as a few dozen windows.
_MANY_WINDOWS = 1024
# Fewer leave most lanes of a panel unused.
_MANY_OUTPUTS = 16
