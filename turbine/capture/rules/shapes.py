"""Shapes the compiler does not take as they come: strided views, several at once, and cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from turbine.capture.sizes import hint, is_empty

aten = torch.ops.aten


def view(x: Tensor, size: list[int]) -> Tensor:
    """A rule may give a result other strides than the op it replaces; values have none in IR."""
    if x.is_contiguous() or _is_a_view(x, size):
        return NotImplemented
    return aten.view.default(x.contiguous(), size)


def _is_a_view(x: Tensor, size: list[int]) -> bool:
    """Whether the strides allow it: then the result is one, which AOTAutograd relies on.

    It makes a result that is a view of an argument anew, with the strides that compiled code gives.
    """
    with _disable_current_modes():
        try:
            torch.empty_strided(x.shape, x.stride(), device="meta").view(size)
        except (RuntimeError, ValueError):  # ValueError where sizes are symbolic
            return False
    return True


def view_as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Of a tensor without axes, the compiler takes no bits."""
    return NotImplemented if x.dim() else x.view(1).view(dtype).view(())


def flip(x: Tensor, dims: list[int]) -> Tensor:
    """Of a tensor without axes, there is nothing to reverse."""
    return NotImplemented if x.dim() else x.clone()


def constant_pad(x: Tensor, pad: list[int], value: float = 0) -> Tensor:
    """Cut off what a negative amount takes away, then pad: IREE 3.13 gets the two at once wrong."""
    if all(not isinstance(amount, int) or amount >= 0 for amount in pad) and not is_empty(x):
        return NotImplemented
    for index, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = x.dim() - 1 - index
        start, end = max(-before, 0), max(-behind, 0)
        x = x.narrow(axis, start, x.shape[axis] - start - end)
    added = [max(amount, 0) for amount in pad]
    if is_empty(x):  # which the compiler cannot write into anything
        amounts = [0] * (2 * x.dim() - len(pad)) + added[::-1]
        sizes = [n + sum(amounts[2 * axis : 2 * axis + 2]) for axis, n in enumerate(x.shape)]
        return torch.full(sizes, value, dtype=x.dtype, device=x.device)
    return aten.constant_pad_nd(x, added, value) if any(added) else x.clone()


def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """The only window is a slice; the compiler takes the elements behind it for a part of it."""
    length = x.shape[dim] if x.dim() else 1
    if not x.dim() or not isinstance(length, int) or (length - size) // step != 0:
        return NotImplemented
    return x.narrow(dim, 0, size).movedim(dim, -1).unsqueeze(dim % x.dim())


def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Pieces of one size, as views of their own: each is free on either side of a boundary."""
    length = x.shape[dim]
    if size == 0:
        return NotImplemented
    starts = range(0, max(length, 1), size)
    return [x.narrow(dim, start, min(size, length - start)) for start in starts]


def split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """Pieces one after another."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(x.narrow(dim, start, size))
        start = start + size
    return pieces


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Every slice along an axis."""
    return [x.select(dim, index) for index in range(x.shape[dim])]


def copy_strided(x: Tensor, stride: list[int]) -> Tensor:
    """A copy whose axes lie in memory in the order of the strides; PyTorch's rules ask for it."""
    order = sorted(range(x.dim()), key=lambda axis: -hint(stride[axis]))
    copy = x.permute(order).clone(memory_format=torch.contiguous_format)
    return copy.permute(sorted(range(x.dim()), key=order.__getitem__))


def empty_permuted(size: list[int], physical_layout: list[int], **options: Any) -> Tensor:
    """Values have no strides in IR."""
    return torch.empty(size, **options)


RULES: dict[Any, Callable[..., Any]] = {
    aten.view.default: view,
    aten.view.dtype: view_as_dtype,
    aten.flip.default: flip,
    aten.constant_pad_nd.default: constant_pad,
    aten.unfold.default: unfold,
    aten.split.Tensor: split,
    aten.unsafe_split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unsafe_split_with_sizes.default: split_with_sizes,
    aten.unbind.int: unbind,
    torch.ops.prims.copy_strided.default: copy_strided,
}

EXPORTED: dict[Any, Callable[..., Any]] = {aten.empty_permuted.default: empty_permuted}
