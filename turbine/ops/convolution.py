"""Convolutions of tensors in any layout, given by letters such as "nhwc"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from turbine.ops.argument_checks import require, require_floats, wide
from turbine.ops.declaration import custom_op
from turbine.ops.specialization import Static

_NAME = "turbine::generic_conv"
# Images, groups, input channels, filters; every other letter is a spatial axis.
_OWN = "ngcf"
_EVERY_SIZE: Static = {"x": True, "w": True}
_CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


@custom_op(
    "turbine::conv_2d_nhwc_fhwc(Tensor x, Tensor w, int[] strides, int[] dilations) -> Tensor",
    static=_EVERY_SIZE,
)
def conv_2d_nhwc_fhwc(
    x: Tensor, w: Tensor, strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """Convolve images [n, h, w, c] with filters [f, h, w, c]; as `generic_conv` does."""
    return _conv(x, w, strides, dilations, ("nhwc", "fhwc", "nhwf"), None)


@custom_op(
    f"{_NAME}(Tensor x, Tensor w, int[] strides, int[] dilations, str xl, str wl, str ol, "
    "int[]? os=None) -> Tensor",
    static=_EVERY_SIZE,
)
def generic_conv(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    dilations: Sequence[int],
    xl: str,
    wl: str,
    ol: str,
    os: Sequence[int] | None,
) -> Tensor:
    """Convolve x with w; the layouts xl, wl and ol give each axis of x, w and the result a letter.

    n, g, c and f are images, groups, input channels and filters. One to three other letters are
    spatial axes; strides and dilations have their order in xl. `os` gives the result's sizes, -1
    for an inferred one; if fewer windows are asked for than fit, the first ones are computed. The
    result and its sums are float32, or float64 if x is.
    """
    return _conv(x, w, strides, dilations, (xl, wl, ol), os)


def _conv(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    dilations: Sequence[int],
    layouts: tuple[str, str, str],
    os: Sequence[int] | None,
) -> Tensor:
    require_floats(_NAME, x=x, w=w)
    spatial = _spatial(x, w, layouts)
    xl, wl, ol = layouts
    x_sizes, w_sizes = _sizes(xl, x), _sizes(wl, w)
    _check_sizes(x_sizes, w_sizes, spatial, strides, dilations)
    groups = x_sizes.get("g", 1)
    images = _permute_axes(wide(x), xl, f"ngc{spatial}").flatten(1, 2)
    filters = _permute_axes(wide(w), wl, f"gfc{spatial}").flatten(0, 1)
    convolve = _CONVOLVE[len(spatial)]
    result = convolve(images, filters, None, strides, 0, dilations, groups)
    result = result.unflatten(1, (groups, w_sizes.get("f", 1)))
    return _cut(_permute_axes(result, f"ngf{spatial}", ol), ol, os, spatial)


def _spatial(x: Tensor, w: Tensor, layouts: tuple[str, str, str]) -> str:
    """The spatial letters in the order of x; raises if the layouts disagree."""
    ranks = (("xl", x.dim()), ("wl", w.dim()), ("ol", None))
    for (name, rank), layout in zip(ranks, layouts, strict=True):
        unique = layout.isascii() and layout.isalpha() and len(set(layout)) == len(layout)
        require(unique, _NAME, f"{name} is {layout!r}, expected letters, each once")
        fact = f"{name} is {layout!r}, a layout of {len(layout)} axes for a tensor of {rank}"
        require(rank is None or len(layout) == rank, _NAME, fact)
    xl, wl, ol = layouts
    spatial = "".join(letter for letter in xl if letter not in _OWN)
    fact = f"xl is {xl!r}, expected one to three letters beside n, g and c for spatial axes"
    require(1 <= len(spatial) <= 3 and "f" not in xl, _NAME, fact)
    require("n" not in wl and ("c" in wl) == ("c" in xl), _NAME, _describe_mismatch("wl", wl, xl))
    require(("g" in wl) == ("g" in xl), _NAME, _describe_mismatch("wl", wl, xl))
    require(set(wl) - set(_OWN) == set(spatial), _NAME, _describe_mismatch("wl", wl, xl))
    expected = {*spatial, *(set("ng") & set(xl)), *(set("f") & set(wl))}
    fact = f"ol is {ol!r}, expected the letters {''.join(sorted(expected))} in any order"
    require(set(ol) == expected, _NAME, fact)
    return spatial


def _describe_mismatch(name: str, layout: str, other: str) -> str:
    return f"{name} is {layout!r}, expected f, and the letters of xl {other!r} other than n"


def _sizes(layout: str, tensor: Tensor) -> dict[str, int]:
    return dict(zip(layout, tensor.shape, strict=True))


def _check_sizes(
    x: Mapping[str, int],
    w: Mapping[str, int],
    spatial: str,
    strides: Sequence[int],
    dilations: Sequence[int],
) -> None:
    for letter in "gc":
        fact = f"x has size {x.get(letter)} along {letter!r} and w {w.get(letter)}"
        require(x.get(letter) == w.get(letter), _NAME, fact)
    for name, values in (("strides", strides), ("dilations", dilations)):
        right = len(values) == len(spatial) and all(value >= 1 for value in values)
        fact = f"{name} is {list(values)}, expected {len(spatial)} numbers of at least 1"
        require(right, _NAME, fact)
    for letter, dilation in zip(spatial, dilations, strict=True):
        reach = dilation * (w[letter] - 1) + 1
        fact = f"w reaches over {reach} elements along {letter!r}, where x has {x[letter]}"
        require(w[letter] > 0 and reach <= x[letter], _NAME, fact)


def _permute_axes(tensor: Tensor, letters: str, wanted: str) -> Tensor:
    """Permute axes to the wanted order; missing ones get size 1."""
    for letter in [letter for letter in letters if letter not in wanted]:
        tensor = tensor.squeeze(letters.index(letter))
        letters = letters.replace(letter, "")
    result = tensor.permute([letters.index(letter) for letter in wanted if letter in letters])
    for place, letter in enumerate(wanted):
        result = result if letter in letters else result.unsqueeze(place)
    return result


def _cut(result: Tensor, layout: str, sizes: Sequence[int] | None, spatial: str) -> Tensor:
    """The first windows, if fewer than fit are asked for."""
    if not sizes:
        return result
    fact = f"os is {list(sizes)}, expected {len(layout)} sizes, one for each letter of {layout!r}"
    require(len(sizes) == len(layout), _NAME, fact)
    for axis, (letter, size) in enumerate(zip(layout, sizes, strict=True)):
        there = result.shape[axis]
        right = size in (-1, there) or (letter in spatial and 0 < size <= there)
        require(right, _NAME, f"os has size {size} along {letter!r}, where there are {there}")
        result = result if size == -1 else result.narrow(axis, 0, size)
    return result
