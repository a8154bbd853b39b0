"""Views, splits and padding that the compiler does not support as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from turbine.capture.sizes import hint, is_empty

aten = torch.ops.aten


def view(x: Tensor, size: list[int]) -> Tensor:
    """A view of a copy, if another rule changed the strides; values have no strides in IR."""
    if x.is_contiguous() or _is_a_view(x, size):
        return NotImplemented
    return aten.view.default(x.contiguous(), size)


def _is_a_view(x: Tensor, size: list[int]) -> bool:
    """Whether the strides allow a view, on which AOTAutograd relies.

    AOTAutograd rebuilds a result that is a view of an argument, with the strides of compiled code.
    """
    with _disable_current_modes():
        try:
            torch.empty_strided(x.shape, x.stride(), device="meta").view(size)
        except (RuntimeError, ValueError):  # ValueError for symbolic sizes
            return False
    return True


def view_as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A bitcast of rank 0, which the compiler lacks, by rank 1."""
    return NotImplemented if x.dim() else x.view(1).view(dtype).view(())


def flip(x: Tensor, dims: list[int]) -> Tensor:
    """flip of a tensor of rank 0: a copy."""
    return NotImplemented if x.dim() else x.clone()


def cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    """Interleave a few columns by selecting: the compiler copies element by element."""
    first = tensors[0]
    is_last = dim in (-1, first.dim() - 1)
    if not is_last or not 2 <= len(tensors) <= _MOST_INTERLEAVED or is_empty(first):
        return NotImplemented
    if any(not _is_column(x) or x.dim() != first.dim() for x in tensors):
        return NotImplemented
    # A column of another dtype or layout would give the result another one.
    if any(x.dtype != first.dtype or not x.is_contiguous() for x in tensors):
        return NotImplemented
    place = torch.arange(len(tensors), device=first.device)
    result = tensors[-1]
    for n, x in reversed([*enumerate(tensors[:-1])]):
        result = torch.where(place == n, x, result)
    return result


def _is_column(x: Tensor) -> bool:
    """Whether the last axis has one element, and no size depends on values."""
    size = x.shape[-1] if x.dim() else 0
    is_one = isinstance(size, int) and size == 1
    return is_one and x.dtype in _INTERLEAVED and not free_unbacked_symbols(x)


# Each element of the result is chosen among all columns.
_MOST_INTERLEAVED = 4
_INTERLEAVED = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int16, torch.int32, torch.int64),
}


def constant_pad(x: Tensor, pad: list[int], value: float = 0) -> Tensor:
    """Slice for negative amounts, then pad: IREE 3.13 gets the two at once wrong."""
    if all(not isinstance(amount, int) or amount >= 0 for amount in pad) and not is_empty(x):
        return NotImplemented
    for index, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = x.dim() - 1 - index
        start, end = max(-before, 0), max(-behind, 0)
        x = x.narrow(axis, start, x.shape[axis] - start - end)
    added = [max(amount, 0) for amount in pad]
    if is_empty(x):  # the compiler cannot pad it
        amounts = [0] * (2 * x.dim() - len(pad)) + added[::-1]
        sizes = [n + sum(amounts[2 * axis : 2 * axis + 2]) for axis, n in enumerate(x.shape)]
        return torch.full(sizes, value, dtype=x.dtype, device=x.device)
    return aten.constant_pad_nd(x, added, value) if any(added) else x.clone()


def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """An only window as a slice: the compiler takes later elements as a part of it."""
    length = x.shape[dim] if x.dim() else 1
    if not x.dim() or not isinstance(length, int) or (length - size) // step != 0:
        return NotImplemented
    return x.narrow(dim, 0, size).movedim(dim, -1).unsqueeze(dim % x.dim())


def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Pieces of one size as separate slices, which are free on both sides of a boundary."""
    length = x.shape[dim]
    if size == 0:
        return NotImplemented
    starts = range(0, max(length, 1), size)
    return [x.narrow(dim, start, min(size, length - start)) for start in starts]


def split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """Consecutive slices."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(x.narrow(dim, start, size))
        start = start + size
    return pieces


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Every slice along an axis."""
    return [x.select(dim, index) for index in range(x.shape[dim])]


def copy_strided(x: Tensor, stride: Sequence[int]) -> Tensor:
    """A copy with the memory order of the strides, which PyTorch's rules use."""
    order = sorted(range(x.dim()), key=lambda axis: -hint(stride[axis]))
    copy = x.permute(order).clone(memory_format=torch.contiguous_format)
    return copy.permute(sorted(range(x.dim()), key=order.__getitem__))


def copy_of(view: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of an op that copies what a view shows."""
    return lambda *args: tree_map(torch.clone, view(*args))


def empty_permuted(size: list[int], physical_layout: list[int], **options: Any) -> Tensor:
    """An empty tensor; values have no strides in IR."""
    return torch.empty(size, **options)


def eye(
    rows: int,
    columns: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """Ones where indices are equal; PyTorch's are of uint16, which the dialect lacks."""
    row = torch.arange(rows, device=device).unsqueeze(-1)
    column = torch.arange(rows if columns is None else columns, device=device)
    return (row == column).to(torch.get_default_dtype() if dtype is None else dtype)


RULES: dict[Any, Callable[..., Any]] = {
    aten.eye.default: eye,
    aten.eye.m: eye,
    aten.view.default: view,
    aten.view.dtype: view_as_dtype,
    aten.flip.default: flip,
    aten.cat.default: cat,
    aten.constant_pad_nd.default: constant_pad,
    aten.unfold.default: unfold,
    aten.split.Tensor: split,
    aten.unsafe_split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unsafe_split_with_sizes.default: split_with_sizes,
    aten.unbind.int: unbind,
    torch.ops.prims.copy_strided.default: copy_strided,
    # Bodies of control flow have these in place of views.
    aten.detach_copy.default: torch.clone,
    aten.select_copy.int: copy_of(aten.select.int),
    aten.slice_copy.Tensor: copy_of(aten.slice.Tensor),
    aten.split_copy.Tensor: copy_of(aten.split.Tensor),
}

EXPORTED: dict[Any, Callable[..., Any]] = {aten.empty_permuted.default: empty_permuted}
