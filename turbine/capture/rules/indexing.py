"""Reads and writes by index, in terms of the few that the compiler has code for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write at places of the flattened tensor."""
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.view(x.shape)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """The compiler wants the indexed axes first."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    chosen = [index for index in indices if index is not None]
    if not axes or axes == list(range(len(axes))) or axes[-1] - axes[0] != len(axes) - 1:
        return NotImplemented
    rank = torch.broadcast_shapes(*(index.shape for index in chosen))
    ahead, behind = x.shape[: axes[0]], x.shape[axes[-1] + 1 :]
    values = values.expand([*ahead, *rank, *behind])
    values = values.movedim([axes[0] + k for k in range(len(rank))], list(range(len(rank))))
    front = list(range(len(axes)))
    written = x.movedim(axes, front).index_put(tuple(chosen), values, accumulate)
    return written.movedim(front, axes)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Read places of the flattened tensor."""
    return aten.index.Tensor(x.reshape(-1), [index.reshape(-1)]).view(index.shape)


def _on_single_elements(op: Any) -> Callable[..., Any]:
    """An op along an axis, which the compiler fails on where there is none."""

    def along_axis(x: Tensor, dim: int, *args: Any, **kwargs: Any) -> Tensor:
        if x.dim():
            return NotImplemented
        rows = [a.reshape(1) if isinstance(a, Tensor) else a for a in args]
        return op(x.view(1), 0, *rows, **kwargs).view([])

    return along_axis


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Of a tensor without axes, itself as often as it is asked for."""
    return x.expand(index.shape).clone() if x.dim() == 0 else NotImplemented


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Of a tensor without axes, itself."""
    return x.clone() if x.dim() == 0 else NotImplemented


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """One index for whole slices: the same index for each element of a slice."""
    if x.dim() == 0:
        source = source.reshape(1)
        return index_reduce(x.view(1), 0, index, source, reduce, include_self=include_self).view([])
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    spread = index.view(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, spread, source, reduce, include_self=include_self)


def diagonal_scatter(
    x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Write a diagonal."""
    count = source.shape[-1]
    if count == 0:
        return x.clone()
    steps = torch.arange(count, device=x.device)
    rows, columns = steps + max(-offset, 0), steps + max(offset, 0)
    front = x.movedim((dim1, dim2), (0, 1))
    written = front.index_put((rows, columns), source.movedim(-1, 0))
    return written.movedim((0, 1), (dim1, dim2))


def as_strided_scatter(
    x: Tensor, source: Tensor, size: list[int], stride: list[int], offset: int | None = None
) -> Tensor:
    """Write at places that strides over the flattened tensor lead to."""
    if not x.is_contiguous() or 0 in size:
        return NotImplemented
    places = torch.full((), offset or 0, dtype=torch.int64, device=x.device)
    for length, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(length, device=x.device) * step
    return put(x, places, source)


def roll(x: Tensor, shifts: list[int], dims: Sequence[int] = ()) -> Tensor:
    """The two pieces of each axis change places."""
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        length = x.shape[dim]
        if length:
            cut = length - shift % length
            pieces = [x.narrow(dim, cut, length - cut), x.narrow(dim, 0, cut)]
            x = torch.cat(pieces, dim)
    return x.clone()


def masked_scatter_backward(gradient: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    """What went to the true places of the mask, in their order; the rest of the source got none."""
    count = 1
    for size in sizes:
        count *= size
    chosen = mask.expand(gradient.shape).reshape(-1)
    # One more place receives what was not chosen.
    places = torch.where(chosen, chosen.to(torch.int64).cumsum(0) - 1, count)
    room = gradient.new_zeros(count + 1)
    return room.index_put((places,), gradient.reshape(-1), True).narrow(0, 0, count).view(sizes)


def replication_pad_backward(gradient: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    """Every element collects the gradients of its copies, one axis after another."""
    for pair in range(len(padding) // 2):
        axis = x.dim() - 1 - pair
        copies = torch.arange(gradient.shape[axis], device=x.device) - padding[2 * pair]
        origin = copies.clamp(0, x.shape[axis] - 1)
        shape = list(gradient.shape)
        shape[axis] = x.shape[axis]
        gradient = torch.index_add(gradient.new_zeros(shape), axis, origin, gradient)
    return gradient


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall between each two of `bins + 1` even steps."""
    if not x.is_floating_point() or x.numel() == 0:
        return NotImplemented
    flat = x.reshape(-1)
    low, high = (torch.full((), float(v), dtype=x.dtype, device=x.device) for v in (min, max))
    if min == max:
        # A range of nothing stands for that of the data.
        low, high = (flat.amin(), flat.amax()) if min == 0 else (low, high)
        alike = low == high
        low, high = torch.where(alike, low - 1, low), torch.where(alike, high + 1, high)
    place = ((flat - low) * (bins / (high - low))).floor().clamp(max=bins - 1)
    counted = (flat >= low) & (flat <= high)
    place = torch.where(counted, place, -1.0)
    steps = torch.arange(bins, device=x.device, dtype=x.dtype)
    return (place == steps.unsqueeze(1)).sum(1).to(x.dtype)


_ALONG_AXIS = (
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
)

RULES: dict[Any, Callable[..., Any]] = {
    **{op: _on_single_elements(op) for op in _ALONG_AXIS},
    aten.index_put.default: index_put,
    aten.put.default: put,
    aten.take.default: take,
    aten.gather.default: gather,
    aten.index_select.default: index_select,
    aten.index_reduce.default: index_reduce,
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten.roll.default: roll,
    aten.masked_scatter_backward.default: masked_scatter_backward,
    aten.replication_pad1d_backward.default: replication_pad_backward,
    aten.replication_pad2d_backward.default: replication_pad_backward,
    aten.replication_pad3d_backward.default: replication_pad_backward,
    aten.histc.default: histc,
}
