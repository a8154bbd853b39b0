"""Gradients of pooling: what each window passes on is overlaid on the elements it met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.convolution import Windows, overlay, per_axis

aten = torch.ops.aten


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
    sizes = _sizes(x, windows)
    if sizes is None:
        return NotImplemented
    share = grad / _members(grad, windows, sizes, count_include_pad, divisor_override)
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
    sizes = _sizes(x, windows)
    if sizes is None:
        return NotImplemented
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


def _sizes(x: Tensor, windows: Windows) -> list[int] | None:
    """The sizes that windows slide over, if they are fixed."""
    sizes = list(x.shape[-len(windows.taps) :])
    fixed = all(isinstance(size, int) and size > 0 for size in sizes)
    return sizes if fixed and x.dtype.is_floating_point else None


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
    """The flat index of the element a tap meets, for each window; none of them for padding."""
    place = torch.zeros([1] * len(sizes), dtype=torch.int64, device=like.device)
    for axis, (offset, n, s, p, size) in enumerate(
        zip(offsets, counts, windows.stride, windows.padding, sizes, strict=True)
    ):
        along = torch.arange(n, device=like.device) * s + (offset - p)
        outside = (along < 0) | (along >= size)
        along = torch.where(outside, -prod(sizes), along)
        place = place * size + along.view([n if a == axis else 1 for a in range(len(sizes))])
    return place


def _channels_last(x: Tensor, axes: int) -> Tensor:
    """(batch, sizes..., 1): each channel is a tensor of its own."""
    return x.reshape([-1, *x.shape[-axes:], 1])


def _as_before(wide: Tensor, x: Tensor) -> Tensor:
    grad = wide.reshape(x.shape)
    return grad.clone(memory_format=torch._prims_common.suggest_memory_format(x))


RULES: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten.avg_pool3d_backward.default: avg_pool_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.max_pool3d_with_indices_backward.default: max_pool_backward,
}
