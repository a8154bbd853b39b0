"""Convolutions as matmuls, for which the compiler has its fastest code.

A convolution maps a wide tensor, in which windows slide, to a narrow one with an element for each
window. To gather, windows of the wide tensor become columns of a matrix (im2col), which the kernel
is multiplied with. To spread, the product is added to the windows (col2im), as in a transposed
convolution and in the gradient of a plain one. Kernels keep their layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

from turbine.capture.declared_ops import KERNELS
from turbine.capture.sizes import hint

aten = torch.ops.aten


@dataclass(frozen=True)
class Windows:
    """How windows slide over the wide tensor, axis by axis."""

    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def offsets(self) -> list[tuple[int, ...]]:
        """The start of each tap in the padded tensor, in the order of the kernel's elements."""
        axes = zip(self.taps, self.dilation, strict=True)
        return list(product(*(range(0, count * step, step) for count, step in axes)))

    def count(self, sizes: Sequence[int]) -> list[int]:
        """The number of windows along each axis."""
        axes = zip(sizes, self.extents(), self.stride, self.padding, strict=True)
        return [(n + 2 * p - extent) // s + 1 for n, extent, s, p in axes]

    def phase_lengths(self, sizes: Sequence[int]) -> list[int]:
        """Every s-th element is one of a phase: as many as windows read."""
        axes = zip(self.count(sizes), self.extents(), self.stride, strict=True)
        return [n + (extent - 1) // s for n, extent, s in axes]

    def extents(self) -> list[int]:
        """The extent of a window along each axis, with dilation."""
        return [d * (k - 1) + 1 for k, d in zip(self.taps, self.dilation, strict=True)]


def has_loose_window(sizes: Sequence[int], windows: Windows) -> bool:
    """Whether an axis has one window, and elements after it.

    IREE 3.13 drops an axis of size 1 from the result, and takes all elements as the window.
    """
    return any(_is_loose(*axis) for axis in _axes(sizes, windows))


def pad(x: Tensor, windows: Windows, value: float = 0.0) -> Tensor:
    """Pad the last axes of a tensor, and drop elements after an only window."""
    sizes = list(x.shape[-len(windows.taps) :])
    margins = [amount for p in reversed(windows.padding) for amount in (p, p)]
    padded = aten.constant_pad_nd(x, margins, value) if any(margins) else x
    for axis, (size, count, extent) in enumerate(_axes(sizes, windows), start=-len(sizes)):
        if _is_loose(size, count, extent):
            padded = aten.slice(padded, axis, 0, extent)
    return padded


def _axes(sizes: Sequence[int], windows: Windows) -> Iterator[tuple[int, int, int]]:
    """The padded size, the number of windows and their extent along each axis."""
    padded = [n + 2 * p for n, p in zip(sizes, windows.padding, strict=True)]
    return zip(padded, windows.count(sizes), windows.extents(), strict=True)


def _is_loose(size: int, count: int, extent: int) -> bool:
    # A guard is added only if the count is 1 now; the result's shape adds it anyway.
    is_only = hint(count) == 1 and guard_or_false(count == 1)
    return is_only and not statically_known_true(size == extent)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """A convolution as a matmul, or NotImplemented if the compiler's own code is as fast."""
    if transposed and _is_narrow(x):
        operands = [one if one is None else one.float() for one in (x, weight, bias)]
        settings = stride, padding, dilation, transposed, output_padding, groups
        return aten.convolution(*operands, *settings).to(x.dtype)
    windows = _windows(weight, stride, padding, dilation, groups)
    # torch-mlir has no working lowering of depthwise transposed convolutions.
    is_supported = _is_supported(x, weight) or (transposed and _is_depthwise(weight, windows))
    if not is_supported or (not transposed and _is_fast_in_compiler(x, windows)):
        if _is_narrow(x) and not transposed and max(stride) > 1 and _is_pointwise(weight, padding):
            # IREE 3.13 computes wrong numbers for these on GPUs.
            ones = [1] * len(windows.taps)
            return aten.convolution(
                _every(x, stride), weight, bias, ones, padding, dilation, False, padding, groups
            )
        if transposed or not has_loose_window(x.shape[2:], windows):
            return NotImplemented
        none = [0] * len(windows.taps)
        return aten.convolution(
            pad(x, windows), weight, bias, stride, none, dilation, False, none, groups
        )
    if transposed:
        extra = per_axis(output_padding, x.dim() - 2)
        y = _spread_windows(x, weight, windows, _wide_sizes(x, windows, extra))
    else:
        y = _gather(x, weight, windows)
    if bias is not None:
        y = y + bias.view([-1, *[1] * (x.dim() - 2)])
    return y.clone(memory_format=suggest_memory_format(x)).to(x.dtype)


def can_be_matmul(x: Tensor, weight: Tensor, padding: Sequence[int]) -> bool:
    """Whether `as_matmul` applies: sizes that windows of several elements slide over are fixed."""
    sizes = (*x.shape[1:], *weight.shape)
    is_fixed = all(isinstance(size, int) and size > 0 for size in sizes)
    return is_fixed or _is_pointwise(weight, padding)


def _is_pointwise(weight: Tensor, padding: Sequence[int]) -> bool:
    return all(size == 1 for size in weight.shape[2:]) and not any(padding)


def _is_narrow(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def _every(x: Tensor, steps: Sequence[int]) -> Tensor:
    """Every n-th element along each axis of the images."""
    for axis, step in enumerate(steps, start=2):
        x = aten.slice(x, axis, 0, None, step) if step > 1 else x
    return x


def as_matmul(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution of any floats as a matmul."""
    if groups == 1 and _is_pointwise(weight, padding):
        channels = _every(x, stride).transpose(0, 1)
        product = weight.flatten(1) @ channels.flatten(1)
        y = product.reshape([weight.shape[0], *channels.shape[1:]]).transpose(0, 1)
    else:
        windows = _windows(weight, [*stride], [*padding], [*dilation], groups)
        y = _gather(x, weight, windows)
    if bias is not None:
        y = y + bias.view([-1, *[1] * (x.dim() - 2)])
    return y.clone(memory_format=suggest_memory_format(x)).to(x.dtype)


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the input, the weight and the bias, as requested."""
    windows = _windows(weight, stride, padding, dilation, groups)
    if not _is_supported(x, weight):
        return NotImplemented
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        moved = (
            _gather(grad, weight, windows)
            if transposed
            else _spread_windows(grad, weight, windows, list(x.shape[2:]))
        )
        grad_x = moved.clone(memory_format=suggest_memory_format(x))
    if output_mask[1]:
        wide, narrow = (grad, x) if transposed else (x, grad)
        grad_weight = _weight_gradient(wide, narrow, windows).reshape(weight.shape)
        grad_weight = grad_weight.clone(memory_format=suggest_memory_format(weight))
    if output_mask[2]:
        grad_bias = _channels_last(grad).flatten(0, -2).sum(0)
    return grad_x, grad_weight, grad_bias


def _windows(
    weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Windows:
    axes = weight.dim() - 2
    stride_, padding_, dilation_ = (per_axis(v, axes) for v in (stride, padding, dilation))
    return Windows(tuple(weight.shape[2:]), stride_, padding_, dilation_, groups)


def per_axis(values: Sequence[int], count: int) -> tuple[int, ...]:
    """One value for each axis; a single value is repeated."""
    return tuple(values) * count if len(values) == 1 else tuple(values)


def _is_supported(x: Tensor, weight: Tensor) -> bool:
    """Whether the rule applies: only the batch is dynamic, and the dtype has fast matmuls."""
    sizes = (*x.shape[1:], *weight.shape)
    fixed = all(isinstance(size, int) and size > 0 for size in sizes)
    return fixed and x.dtype in (torch.float32, torch.float64)


def _is_fast_in_compiler(x: Tensor, windows: Windows) -> bool:
    """Whether the compiler's convolution is as fast: one image and plain windows."""
    if x.dim() != 4 or windows.groups != 1 or x.shape[0] != 1:
        return False
    return not has_loose_window(x.shape[2:], windows)


def _wide_sizes(x: Tensor, windows: Windows, extra: Sequence[int]) -> list[int]:
    """The sizes of a transposed convolution's result."""
    axes = zip(
        x.shape[2:],
        windows.taps,
        windows.stride,
        windows.padding,
        windows.dilation,
        extra,
        strict=True,
    )
    return [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in axes]


def _channels_last(x: Tensor) -> Tensor:
    return x.permute([0, *range(2, x.dim()), 1])


def _channels_first(x: Tensor) -> Tensor:
    return x.permute([0, x.dim() - 1, *range(1, x.dim() - 1)])


def _gather(wide: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    """The narrow tensor: the kernel times each window."""
    if _is_depthwise(weight, windows):
        wide = _channels_last(wide).to(torch.promote_types(wide.dtype, torch.float32))
        taps = zip(_slices(wide, windows), _tap_weights(weight), strict=True)
        return _channels_first(_sum([values * tap for values, tap in taps]))
    columns = im2col(wide, windows)
    product = _matrix(weight, windows) @ _grouped(columns, windows)
    return product.reshape([weight.shape[0], *columns.shape[2:]]).transpose(0, 1)


def _spread_windows(narrow: Tensor, weight: Tensor, windows: Windows, sizes: list[int]) -> Tensor:
    """The wide tensor: each element times the kernel, added up where windows overlap."""
    if _is_depthwise(weight, windows):
        wide = _channels_last(narrow).to(torch.promote_types(narrow.dtype, torch.float32))
        values = [wide * tap for tap in _tap_weights(weight)]
        return _channels_first(_overlay(values, windows, sizes))
    elements = narrow.transpose(0, 1)
    product = _matrix(weight, windows).transpose(-2, -1) @ _grouped(elements, windows)
    return col2im(product.reshape([-1, prod(windows.taps), *elements.shape[1:]]), windows, sizes)


def _weight_gradient(wide: Tensor, narrow: Tensor, windows: Windows) -> Tensor:
    """The gradient of the kernel."""
    if wide.shape[1] == narrow.shape[1] == windows.groups:
        narrow = _channels_last(narrow)
        axes = list(range(narrow.dim() - 1))
        slices = _slices(_channels_last(wide), windows)
        return torch.stack([(values * narrow).sum(axes) for values in slices], -1)
    columns = _grouped(im2col(wide, windows, for_gradient=True), windows)
    return _grouped(narrow.transpose(0, 1), windows) @ columns.transpose(-2, -1)


def _grouped(x: Tensor, windows: Windows) -> Tensor:
    """Channels, and perhaps taps, as rows, images and places as columns; groups in front."""
    columns = prod(x.shape[-1 - len(windows.taps) :])
    groups = [windows.groups] if windows.groups > 1 else []
    return x.reshape([*groups, prod(x.shape[: -1 - len(windows.taps)]) // windows.groups, columns])


def _matrix(weight: Tensor, windows: Windows) -> Tensor:
    """The kernel as (narrow channels, wide channels * taps), with the groups in front."""
    groups = [windows.groups] if windows.groups > 1 else []
    return weight.reshape([*groups, weight.shape[0] // windows.groups, prod(weight.shape[1:])])


def im2col(wide: Tensor, windows: Windows, *, for_gradient: bool = False) -> Tensor:
    """The elements of each window: (channels, taps, images, *windows)."""
    if "im2col" in KERNELS:
        phases = _split_phases(wide, windows)
        kernel = KERNELS["im2col"]
        return kernel(phases, windows.taps, windows.dilation, for_gradient=for_gradient)
    slices = _slices(_channels_last(wide), windows)
    return torch.stack(slices).movedim(-1, 0)


def col2im(values: Tensor, windows: Windows, sizes: list[int]) -> Tensor:
    """The sums of all windows at each element: `im2col` backward."""
    if "col2im" in KERNELS:
        phases = KERNELS["col2im"](values, windows.taps, windows.stride, windows.dilation)
        return _join_phases(phases, windows, sizes)
    taps = [tap.movedim(0, -1) for tap in values.unbind(1)]
    return _channels_first(_overlay(taps, windows, sizes))


def _split_phases(wide: Tensor, windows: Windows) -> Tensor:
    """The padded tensor as (images, channels, *stride, *lengths): s phases of an axis of stride s.

    Phase i has every s-th element from i on.
    """
    sizes = wide.shape[2:]
    lengths = windows.phase_lengths(sizes)
    axes = list(zip(sizes, lengths, windows.stride, windows.padding, strict=True))
    margins = [m for n, length, s, p in reversed(axes) for m in (p, length * s - n - p)]
    padded = aten.constant_pad_nd(wide, margins) if any(margins) else wide
    pairs = [size for pair in zip(lengths, windows.stride, strict=True) for size in pair]
    split = padded.reshape([*wide.shape[:2], *pairs])
    axis = range(2, split.dim())
    return split.permute([0, 1, *axis[1::2], *axis[::2]])


def _join_phases(phases: Tensor, windows: Windows, sizes: list[int]) -> Tensor:
    """Undo `_split_phases`."""
    count = len(sizes)
    pairs = [axis for i in range(count) for axis in (2 + count + i, 2 + i)]
    lengths = [n * s for n, s in zip(phases.shape[2 + count :], windows.stride, strict=True)]
    wide = phases.permute([0, 1, *pairs]).reshape([*phases.shape[:2], *lengths])
    axes = list(zip(sizes, lengths, windows.padding, strict=True))
    # A negative margin is cut off.
    margins = [m for n, length, p in reversed(axes) for m in (-p, n + p - length)]
    return aten.constant_pad_nd(wide, margins) if any(margins) else wide


def _is_depthwise(weight: Tensor, windows: Windows) -> bool:
    return weight.shape[0] == windows.groups and weight.shape[1] == 1


def _tap_weights(weight: Tensor) -> list[Tensor]:
    """One weight per channel for each tap of a depthwise kernel."""
    return list(weight.reshape([weight.shape[0], -1]).unbind(-1))


def _slices(wide: Tensor, windows: Windows) -> list[Tensor]:
    """The elements at each tap, one for each window."""
    counts = windows.count(wide.shape[1:-1])
    margins = [amount for p in reversed(windows.padding) for amount in (p, p)]
    padded = aten.constant_pad_nd(wide, [0, 0, *margins]) if any(margins) else wide
    slices = []
    for offsets in windows.offsets():
        taken = padded
        for axis, (start, n, step) in enumerate(
            zip(offsets, counts, windows.stride, strict=True), start=1
        ):
            taken = aten.slice(taken, axis, start, start + (n - 1) * step + 1, step)
        slices.append(taken)
    return slices


def _overlay(values: list[Tensor], windows: Windows, sizes: list[int]) -> Tensor:
    """Add the values of each tap to the elements at the tap (col2im)."""
    placed = []
    ends = [size + 2 * padding for size, padding in zip(sizes, windows.padding, strict=True)]
    for value, offsets in zip(values, windows.offsets(), strict=True):
        if any(offset >= end for offset, end in zip(offsets, ends, strict=True)):
            continue  # no elements, which ceil_mode allows
        margins: list[int] = []
        for axis, (offset, step, padding, size) in enumerate(
            zip(offsets, windows.stride, windows.padding, sizes, strict=True), start=1
        ):
            value = _interleave_zeros(value, axis, step)
            behind = size + 2 * padding - offset - value.shape[axis]
            margins = [offset, behind, *margins]
        placed.append(aten.constant_pad_nd(value, [0, 0, *margins]) if any(margins) else value)
    wide = _sum(placed)
    for axis, (padding, size) in enumerate(zip(windows.padding, sizes, strict=True), start=1):
        wide = aten.slice(wide, axis, padding, padding + size) if padding else wide
    return wide


def _interleave_zeros(x: Tensor, axis: int, step: int) -> Tensor:
    """The elements along an axis with step - 1 zeros between them."""
    if step == 1:
        return x
    count = x.shape[axis]
    behind = [0, 0] * (x.dim() - 1 - axis) + [0, step - 1]
    spaced = aten.constant_pad_nd(x.unsqueeze(axis + 1), behind).flatten(axis, axis + 1)
    return aten.slice(spaced, axis, 0, (count - 1) * step + 1)


def _sum(values: list[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


RULES: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
}
