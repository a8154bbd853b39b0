"""Convolutions in the form the compiler has fast code for: two axes, forward, plain strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


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
    """Choose a rewrite, or leave the op to the compiler."""
    axes = x.dim() - 2
    stride, padding, dilation = (_per_axis(v, axes) for v in (stride, padding, dilation))
    if transposed and all(d == 1 for d in dilation):
        extra = _per_axis(output_padding, axes)
        return _by_subpixels(x, weight, bias, stride, padding, extra, groups)
    if transposed or x.is_complex():
        return NotImplemented
    if axes == 3 and groups == 1:
        return _by_slices(x, weight, bias, stride, padding, dilation)
    return _with_plain_strides(x, weight, bias, stride, padding, dilation, groups)


def _by_subpixels(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    extra: list[int],
    groups: int,
) -> Tensor:
    """A transposed convolution as a plain one that computes every phase of the stride at once.

    Output o along an axis takes taps j with (o + padding - j) divisible by the stride, so each
    of the `stride` phases is a short convolution. Phases become channels, then interleave.
    """
    sizes, taps = list(x.shape[2:]), list(weight.shape[2:])
    steps = [-(-k // s) for k, s in zip(taps, stride, strict=True)]
    channels = weight.shape[1] * groups
    kernel = _phase_kernel(weight, stride, steps, groups)
    rim = [n - 1 for n in steps]
    ones, zeros = [1] * len(steps), [0] * len(steps)
    phases = aten.convolution(x, kernel, None, ones, rim, ones, False, zeros, groups)
    y = _interleave(phases, channels, stride)
    for axis, (n, k, s, p, e) in enumerate(
        zip(sizes, taps, stride, padding, extra, strict=True), start=2
    ):
        y = _window(y, axis, p, (n - 1) * s - 2 * p + k + e)
    return y if bias is None else y + bias.view([1, -1] + [1] * len(steps))


def _phase_kernel(weight: Tensor, stride: list[int], steps: list[int], groups: int) -> Tensor:
    """(in, out/groups, taps...) as (out * phases, in/groups, steps...), taps in reverse."""
    inner, outer = weight.shape[0] // groups, weight.shape[1]
    taps = list(weight.shape[2:])
    w = weight.view([groups, inner, outer, *taps]).transpose(1, 2)
    w = w.reshape([groups * outer, inner, *taps])
    pads = [(0, n * s - k) for k, s, n in zip(taps, stride, steps, strict=True)]
    w = aten.constant_pad_nd(w, [amount for pair in reversed(pads) for amount in pair])
    split = [size for pair in zip(steps, stride, strict=True) for size in pair]
    w = w.view([groups * outer, inner, *split])
    step_axes = [2 + 2 * a for a in range(len(steps))]
    phase_axes = [3 + 2 * a for a in range(len(steps))]
    w = w.flip(step_axes).permute([0, *phase_axes, 1, *step_axes])
    return w.reshape([groups * outer * prod(stride), inner, *steps])


def _interleave(phases: Tensor, channels: int, stride: list[int]) -> Tensor:
    """(batch, channels * phases, sizes...) as (batch, channels, sizes * stride...)."""
    sizes, count = list(phases.shape[2:]), len(stride)
    y = phases.view([phases.shape[0], channels, *stride, *sizes])
    pairs = [axis for a in range(count) for axis in (2 + count + a, 2 + a)]
    y = y.permute([0, 1, *pairs])
    full = [n * s for n, s in zip(sizes, stride, strict=True)]
    return y.reshape([phases.shape[0], channels, *full])


def _window(y: Tensor, axis: int, start: int, length: int) -> Tensor:
    """`length` elements from `start` on, with zeros past the end."""
    available = min(y.shape[axis] - start, length)
    y = y.narrow(axis, start, available)
    if available == length:
        return y
    behind = [0, 0] * (y.dim() - 1 - axis) + [0, length - available]
    return aten.constant_pad_nd(y, behind)


def _by_slices(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Three axes as two: slices along the first become images, its taps become channels."""
    taps, reach = weight.shape[2], dilation[0] * (weight.shape[2] - 1)
    x = aten.constant_pad_nd(x, [0, 0, 0, 0, padding[0], padding[0]])
    batch, _, depth = x.shape[:3]
    slices = (depth - reach - 1) // stride[0] + 1
    last = (slices - 1) * stride[0] + 1
    starts = [tap * dilation[0] for tap in range(taps)]
    seen = [x[:, :, start : start + last : stride[0]] for start in starts]
    images = torch.cat(seen, dim=1).transpose(1, 2).flatten(0, 1)
    kernel = weight.transpose(1, 2).flatten(1, 2)
    y = torch.conv2d(images, kernel, bias, stride[1:], padding[1:], dilation[1:])
    return y.view([batch, slices, *y.shape[1:]]).transpose(1, 2)


def _with_plain_strides(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Give an axis whose result has size 1 a stride of 1: IREE 3.13 fails on larger ones."""
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    collapses = [s > 1 and (n + 2 * p - d * (k - 1) - 1) // s == 0 for n, k, s, p, d in sizes]
    if not any(collapses):
        return NotImplemented
    unit = [1 if collapse else s for collapse, s in zip(collapses, stride, strict=True)]
    zeros = [0] * len(stride)
    y = aten.convolution(x, weight, bias, unit, padding, dilation, False, zeros, groups)
    for axis, collapse in enumerate(collapses, start=2):
        y = y.narrow(axis, 0, 1) if collapse else y
    return y


def _per_axis(values: Sequence[int], count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


RULES: dict[Any, Callable[..., Any]] = {aten.convolution.default: convolution}
