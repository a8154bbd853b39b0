"""Pooling with ceil_mode, and gradients of pooling.

The compiler pads by a whole stride for ceil_mode and then writes out of bounds. Here the input is
padded so that whole windows give as many results, and those that PyTorch leaves out are cut off.
In a gradient, what each window passes on is overlaid on the elements it met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from turbine.capture.rules.convolution import Windows, overlay, per_axis

aten = torch.ops.aten


def avg_pool(
    x: Tensor,
    kernel_size: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Sums of padded windows over their counts."""
    windows = _windows(len(kernel_size), kernel_size, stride, padding, [1])
    pool = _POOLS[len(windows.taps)][0]
    options = (ceil_mode, count_include_pad, divisor_override)
    if x.dim() == len(windows.taps) + 1:
        mean: Tensor = pool(x.unsqueeze(0), kernel_size, stride, padding, *options)
        return mean.squeeze(0)
    if not ceil_mode:
        return NotImplemented
    sizes = list(x.shape[-len(windows.taps) :])
    padded = _pad(x, windows, 0.0, ceil_mode)
    summed = pool(padded, windows.taps, windows.stride, [0], False, True, 1)
    sums = _cut(summed, windows, sizes)
    means = sums / _members(sums, windows, sizes, count_include_pad, divisor_override)
    return _in_format(means, x)


def max_pool_with_indices(
    x: Tensor,
    kernel_size: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest of each padded window, and its place in the input."""
    windows = _windows(len(kernel_size), kernel_size, stride, padding, dilation)
    pool = _POOLS[len(windows.taps)][1]
    if x.dim() == len(windows.taps) + 1:
        both = pool(x.unsqueeze(0), kernel_size, stride, padding, dilation, ceil_mode)
        return both[0].squeeze(0), both[1].squeeze(0)
    if not x.dtype.is_floating_point or not (ceil_mode or any(windows.padding)):
        return NotImplemented
    sizes = list(x.shape[-len(windows.taps) :])
    padded = _pad(x, windows, float("-inf"), ceil_mode)
    pooled = pool(padded, windows.taps, windows.stride, [0], windows.dilation, False)[0]
    largest = _cut(pooled, windows, sizes) if ceil_mode else pooled
    return _in_format(largest, x), _in_format(_find(largest, padded, windows, sizes), x)


_POOLS: dict[int, tuple[Any, Any]] = {
    2: (aten.avg_pool2d.default, aten.max_pool2d_with_indices.default),
    3: (aten.avg_pool3d.default, aten.max_pool3d_with_indices.default),
}


def avg_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Every element of a window gets an equal share."""
    windows = _windows(len(kernel_size), kernel_size, stride, padding, [1])
    sizes = list(x.shape[-len(windows.taps) :])
    share = grad / _members(grad, windows, sizes, count_include_pad, divisor_override)
    if not _are_fixed(sizes):
        return _in_format(_spread(share, windows, sizes), x)
    flat = _channels_last(share, len(sizes))
    wide = overlay([flat] * prod(windows.taps), windows, sizes)
    return _as_before(wide, x)


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """The element that was largest gets it all."""
    windows = _windows(len(kernel_size), kernel_size, stride, padding, dilation)
    axes = len(windows.taps)
    sizes = list(x.shape[-axes:])
    if not _are_fixed(sizes):
        flat = torch.zeros_like(x).flatten(-axes)
        wide = flat.scatter_add(-1, indices.flatten(-axes), grad.flatten(-axes))
        return _as_before(wide, x)
    counts = list(grad.shape[-len(sizes) :])
    passed = [
        torch.where(indices == _places(offsets, windows, counts, sizes, grad), grad, 0.0)
        for offsets in windows.offsets()
    ]
    wide = overlay([_channels_last(p, len(sizes)) for p in passed], windows, sizes)
    return _as_before(wide, x)


def _windows(
    axes: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Windows:
    kernel = per_axis(kernel_size, axes)
    steps = per_axis(stride, axes) if stride else kernel
    return Windows(kernel, steps, per_axis(padding, axes), per_axis(dilation, axes))


def _are_fixed(sizes: Sequence[int]) -> bool:
    return all(isinstance(size, int) and size > 0 for size in sizes)


def _pad(x: Tensor, windows: Windows, value: float, ceil_mode: bool) -> Tensor:
    """Padded so that ceil_mode asks for no more windows than fit."""
    margins: list[int] = []
    for step, padding in zip(windows.stride, windows.padding, strict=True):
        margins = [padding, padding + (step - 1 if ceil_mode else 0), *margins]
    return aten.constant_pad_nd(x, margins, value) if any(margins) else x


def _cut(pooled: Tensor, windows: Windows, sizes: Sequence[int]) -> Tensor:
    """Without windows that start behind the input, which PyTorch leaves out."""
    steps = zip(sizes, windows.stride, windows.padding, strict=True)
    for axis, (size, step, padding) in enumerate(steps, start=-len(sizes)):
        count = pooled.shape[axis]
        if (count - 1) * step >= size + padding:
            pooled = pooled.narrow(axis, 0, count - 1)
    return pooled


def _find(largest: Tensor, padded: Tensor, windows: Windows, sizes: list[int]) -> Tensor:
    """The flat index of the first element of each window that is the largest, or of the last nan.

    That of the compiler misses nan, and takes as long as all else together.
    """
    counts = list(largest.shape[-len(sizes) :])
    taps = []
    for offsets in windows.offsets():
        met = padded
        axes = zip(offsets, counts, windows.stride, strict=True)
        for axis, (start, n, step) in enumerate(axes, start=padded.dim() - len(sizes)):
            met = aten.slice(met, axis, start, start + (n - 1) * step + 1, step)
        taps.append((met, _places(offsets, windows, counts, sizes, padded)))
    found = torch.zeros_like(largest, dtype=torch.int64)
    for met, place in reversed(taps):
        found = torch.where((met == largest) & (place >= 0), place, found)
    for met, place in taps:
        found = torch.where(met != met, place, found)
    return found


def _spread(share: Tensor, windows: Windows, sizes: Sequence[int]) -> Tensor:
    """The sum of what all windows that meet an element pass on, one axis after another."""
    axes = zip(sizes, windows.taps, windows.stride, windows.padding, strict=True)
    for axis, (size, taps, step, padding) in enumerate(axes, start=-len(sizes)):
        first = torch.arange(share.shape[axis], device=share.device).unsqueeze(1) * step - padding
        element = torch.arange(size, device=share.device)
        met = (first <= element) & (element < first + taps)
        passed = torch.where(met, share.movedim(axis, -1).unsqueeze(-1), 0.0)
        share = passed.sum(-2).movedim(-1, axis)
    return share


def _members(
    grad: Tensor, windows: Windows, sizes: list[int], count_padding: bool, override: int | None
) -> Tensor | int:
    """How many elements each window divides by."""
    if override is not None:
        return override
    counts = list(grad.shape[-len(sizes) :])
    members = torch.ones([1] * len(sizes), dtype=grad.dtype, device=grad.device)
    for axis, (n, k, s, p, size) in enumerate(
        zip(counts, windows.taps, windows.stride, windows.padding, sizes, strict=True)
    ):
        margin = p if count_padding else 0
        first = torch.arange(n, device=grad.device) * s - p
        along = (first + k).clamp(max=size + margin) - first.clamp(min=-margin)
        members = members * along.view([n if a == axis else 1 for a in range(len(sizes))])
    return members


def _places(
    offsets: tuple[int, ...], windows: Windows, counts: list[int], sizes: list[int], like: Tensor
) -> Tensor:
    """The flat index of the element a tap meets, for each window; -1 for padding."""
    shape = [1] * len(sizes)
    place = torch.zeros(shape, dtype=torch.int64, device=like.device)
    inside = torch.ones(shape, dtype=torch.bool, device=like.device)
    for axis, (offset, n, s, p, size) in enumerate(
        zip(offsets, counts, windows.stride, windows.padding, sizes, strict=True)
    ):
        along = torch.arange(n, device=like.device) * s + (offset - p)
        along = along.view([n if a == axis else 1 for a in range(len(sizes))])
        inside = inside & (along >= 0) & (along < size)
        place = place * size + along
    return torch.where(inside, place, -1)


def _channels_last(x: Tensor, axes: int) -> Tensor:
    """(batch, sizes..., 1): each channel is a tensor of its own."""
    return x.reshape([-1, *x.shape[-axes:], 1])


def _as_before(wide: Tensor, x: Tensor) -> Tensor:
    return _in_format(wide.reshape(x.shape), x)


def _in_format(result: Tensor, x: Tensor) -> Tensor:
    return result.clone(memory_format=suggest_memory_format(x))


RULES: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d.default: avg_pool,
    aten.avg_pool3d.default: avg_pool,
    aten.max_pool2d_with_indices.default: max_pool_with_indices,
    aten.max_pool3d_with_indices.default: max_pool_with_indices,
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten.avg_pool3d_backward.default: avg_pool_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.max_pool3d_with_indices_backward.default: max_pool_backward,
}
