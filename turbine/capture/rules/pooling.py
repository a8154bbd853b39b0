"""Pooling with padding, ceil_mode or indices, adaptive max pooling, and their gradients.

The compiler's pooling is good without padding. With padding its averages can be wrong, with
ceil_mode it writes out of bounds, and its indices are wrong for windows of unequal sides and for
nan. Here the input is padded first, windows that PyTorch omits are dropped, and indices are found
by comparison. In a gradient, each element adds the gradients of the windows that cover it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial, reduce, wraps
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from turbine.capture.rules.convolution import (
    Windows,
    has_loose_window,
    pad,
    per_axis,
)
from turbine.capture.rules.sums import ADDED_WIDER
from turbine.capture.rules.window_grid import WindowGrid

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
    # torch-mlir takes one number for all axes wrongly.
    settings = windows.taps, windows.stride, windows.padding
    if x.dim() == len(windows.taps) + 1:
        mean: Tensor = pool(x.unsqueeze(0), *settings, *options)
        return mean.squeeze(0)
    if x.dtype in ADDED_WIDER:
        wide: Tensor = pool(x.to(torch.float32), *settings, *options)
        return wide.to(x.dtype)
    sizes = list(x.shape[-len(windows.taps) :])
    if not (ceil_mode or any(windows.padding) or has_loose_window(sizes, windows)):
        return NotImplemented
    padded = _pad(x, windows, 0.0, ceil_mode)
    summed = pool(padded, windows.taps, windows.stride, [0], False, True, 1)
    sums = _cut(summed, windows, sizes) if ceil_mode else summed
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
    """The maximum of each padded window, and its index in the input."""
    windows = _windows(len(kernel_size), kernel_size, stride, padding, dilation)
    pool = _POOLS[len(windows.taps)][1]
    if x.dim() == len(windows.taps) + 1:
        settings = windows.taps, windows.stride, windows.padding, windows.dilation
        both = pool(x.unsqueeze(0), *settings, ceil_mode)
        return both[0].squeeze(0), both[1].squeeze(0)
    if _is_left_to_compiler.get():
        return NotImplemented
    sizes = list(x.shape[-len(windows.taps) :])
    padded = _pad(x, windows, _lowest(x.dtype), ceil_mode)
    with _leave_to_compiler():
        pooled = pool(padded, windows.taps, windows.stride, [0], windows.dilation, False)[0]
    largest = _cut(pooled, windows, sizes) if ceil_mode else pooled
    return _in_format(largest, x), _in_format(_find(largest, padded, windows, sizes), x)


_is_left_to_compiler: ContextVar[bool] = ContextVar("is_left_to_compiler", default=False)


@contextmanager
def _leave_to_compiler() -> Iterator[None]:
    """Do not decompose max pooling: its values are right, and its indices are not used."""
    token = _is_left_to_compiler.set(True)
    try:
        yield
    finally:
        _is_left_to_compiler.reset(token)


def _lowest(dtype: torch.dtype) -> float:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


_POOLS: dict[int, tuple[Any, Any]] = {
    2: (aten.avg_pool2d.default, aten.max_pool2d_with_indices.default),
    3: (aten.avg_pool3d.default, aten.max_pool3d_with_indices.default),
}


def adaptive_max_pool(x: Tensor, output_size: list[int]) -> tuple[Tensor, Tensor]:
    """The maximum of each adaptive window, and its index in the input."""
    axes = len(output_size)
    if x.dim() == axes + 1:
        largest, places = adaptive_max_pool(x.unsqueeze(0), output_size)
        return largest.squeeze(0), places.squeeze(0)
    sizes = list(x.shape[-axes:])
    pairs = list(zip(sizes, output_size, strict=True))
    if _are_fixed(output_size) and all(isinstance(n, int) and n % count == 0 for n, count in pairs):
        kernel = [n // count for n, count in pairs]
        regular: tuple[Tensor, Tensor] = _POOLS[axes][1](x, kernel)
        return regular
    members = [_adaptive_members(n, count, x.device) for n, count in pairs]
    windows = _gather_windows(x, members)
    places = _gather_windows(torch.arange(prod(sizes), device=x.device).reshape(sizes), members)
    largest = windows.amax(-1)
    first = torch.where(windows == largest.unsqueeze(-1), places, prod(sizes)).amin(-1)
    last_nan = torch.where(windows != windows, places, -1).amax(-1)
    found = torch.where(last_nan >= 0, last_nan, first)
    return _in_format(largest, x), _in_format(found, x)


def _adaptive_members(size: int, count: int, device: torch.device) -> Tensor:
    """The indices in each window along an axis; shorter windows repeat their last index."""
    window = torch.arange(count, device=device).unsqueeze(1)
    most = -(-size // max(count, 1)) + 1
    start = window * size // max(count, 1)
    stop = ((window + 1) * size + count - 1) // max(count, 1)
    return torch.minimum(start + torch.arange(most, device=device), stop - 1)


def _gather_windows(x: Tensor, members: Sequence[Tensor]) -> Tensor:
    """(..., windows of each axis, elements of a window)."""
    first = x.dim() - len(members)
    for k, indices in enumerate(members):
        axis = first + 2 * k
        x = x.index_select(axis, indices.flatten()).unflatten(axis, indices.shape)
    counts = [first + 2 * k for k in range(len(members))]
    order = [*range(first), *counts, *(axis + 1 for axis in counts)]
    return x.permute(order).flatten(-len(members))


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
    """Distribute the gradient of a window equally."""
    windows = _windows(len(kernel_size), kernel_size, stride, padding, [1])
    sizes = list(x.shape[-len(windows.taps) :])
    share = grad / _members(grad, windows, sizes, count_include_pad, divisor_override)
    if not _are_fixed(sizes):
        return _in_format(_spread_windows(share, windows, sizes), x)
    grid = WindowGrid(windows, sizes)
    shares = grid.pad(share, 0.0)
    placed = [
        torch.where(grid.is_covered(back, grad.device), grid.read(shares, back), 0.0)
        for back in grid.shifts()
    ]
    return _in_format(grid.join(reduce(torch.add, placed), x), x)


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
    """Pass the gradient of a window to its maximum."""
    windows = _windows(len(kernel_size), kernel_size, stride, padding, dilation)
    axes = len(windows.taps)
    sizes = list(x.shape[-axes:])
    if not _are_fixed(sizes):
        return _scatter_to_largest(grad, x, indices, axes)
    grid = WindowGrid(windows, sizes)
    own = grid.places(grad.device)
    places, grads = grid.pad(indices.to(own.dtype), -1), grid.pad(grad, 0.0)
    passed = [
        torch.where(grid.read(places, back) == own, grid.read(grads, back), 0.0)
        for back in grid.shifts()
    ]
    return _in_format(grid.join(reduce(torch.add, passed), x), x)


def _scatter_to_largest(grad: Tensor, x: Tensor, indices: Tensor, axes: int) -> Tensor:
    """Scatter gradients to maxima, for windows that overlap or are dynamic."""
    flat = torch.zeros_like(x).flatten(-axes)
    wide = flat.scatter_add(-1, indices.flatten(-axes), grad.flatten(-axes))
    return _in_format(wide.reshape(x.shape), x)


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
    """Pad so that the windows of ceil_mode fit."""
    if not ceil_mode:
        return pad(x, windows, value)
    margins: list[int] = []
    for step, padding in zip(windows.stride, windows.padding, strict=True):
        margins = [padding, padding + step - 1, *margins]
    unpadded = replace(windows, padding=(0,) * len(windows.taps))
    return pad(aten.constant_pad_nd(x, margins, value), unpadded, value)


def _cut(pooled: Tensor, windows: Windows, sizes: Sequence[int]) -> Tensor:
    """Drop windows that start after the input, as PyTorch does."""
    steps = zip(sizes, windows.stride, windows.padding, strict=True)
    for axis, (size, step, padding) in enumerate(steps, start=-len(sizes)):
        count = pooled.shape[axis]
        if (count - 1) * step >= size + padding:
            pooled = pooled.narrow(axis, 0, count - 1)
    return pooled


def _find(largest: Tensor, padded: Tensor, windows: Windows, sizes: list[int]) -> Tensor:
    """The flat index of the first maximum of each window, or of the last nan.

    The compiler's indices ignore nan, and take as long as everything else.
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


def _spread_windows(share: Tensor, windows: Windows, sizes: Sequence[int]) -> Tensor:
    """The sum over the windows of each element, axis by axis."""
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
    """The divisor of each window."""
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
    """The flat index of the element at a tap, for each window; -1 for padding."""
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


def _in_format(result: Tensor, x: Tensor) -> Tensor:
    return result.clone(memory_format=suggest_memory_format(x))


def _of_axes(axes: int, rule: Callable[..., Any], place: int = 1) -> Callable[..., Any]:
    """A rule whose window, an argument at a place, may have one size for all axes."""

    @wraps(rule)
    def apply_rule(*args: Any, **options: Any) -> Any:
        window = per_axis(args[place], axes)
        return rule(*args[:place], list(window), *args[place + 1 :], **options)

    return apply_rule


RULES: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d.default: _of_axes(2, avg_pool),
    aten.avg_pool3d.default: _of_axes(3, avg_pool),
    aten.max_pool2d_with_indices.default: _of_axes(2, max_pool_with_indices),
    aten.max_pool3d_with_indices.default: _of_axes(3, max_pool_with_indices),
    aten.avg_pool2d_backward.default: _of_axes(2, avg_pool_backward, 2),
    aten.avg_pool3d_backward.default: _of_axes(3, avg_pool_backward, 2),
    aten.adaptive_max_pool2d.default: adaptive_max_pool,
    aten.adaptive_max_pool3d.default: adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: partial(_scatter_to_largest, axes=2),
    aten.adaptive_max_pool3d_backward.default: partial(_scatter_to_largest, axes=3),
    aten.max_pool2d_with_indices_backward.default: _of_axes(2, max_pool_backward, 2),
    aten.max_pool3d_with_indices_backward.default: _of_axes(3, max_pool_backward, 2),
}
