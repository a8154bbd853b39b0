"""Gathers and scatters, in terms of the few that the compiler supports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import statically_known_true

from turbine.capture.overlap import has_overlap, keeps_overlap
from turbine.capture.rules.masked_writes import MASKS, put_by_masks
from turbine.capture.sizes import is_empty

aten = torch.ops.aten


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write at indices of the flattened tensor."""
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.view(x.shape)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """index_put: masks are replaced; other indexed axes are flattened or moved to the front."""
    if accumulate and x.dtype == torch.bool:  # the compiler adds bools modulo 2
        wide = (x.to(torch.int32), indices, values.to(torch.int32), True)
        return aten.index_put.default(*wide).to(torch.bool)
    if any(index is not None and index.dtype in MASKS for index in indices):
        return put_by_masks(x, indices, values, accumulate)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    chosen = [index for index in indices if index is not None]
    if not axes or axes == list(range(len(axes))):
        return NotImplemented
    if axes[-1] - axes[0] == len(axes) - 1:
        rank = torch.broadcast_shapes(*(index.shape for index in chosen))
        ahead, behind = x.shape[: axes[0]], x.shape[axes[-1] + 1 :]
        values = values.expand([*ahead, *rank, *behind])
        is_static = all(isinstance(size, int) for size in x.shape[: axes[-1] + 1])
        if len(axes) == 1 and is_static and x.is_contiguous():
            return _put_rows(x, axes[0], chosen[0], values, accumulate)
        values = values.movedim([axes[0] + k for k in range(len(rank))], list(range(len(rank))))
    # In the values, the axes of indices that are apart are at the front.
    front = list(range(len(axes)))
    written = x.movedim(axes, front).index_put(tuple(chosen), values, accumulate)
    back = written.movedim(front, axes)
    # A clone: `contiguous` keeps strides of axes of size 1, which a later view may reject.
    return back.clone(memory_format=torch.contiguous_format) if x.is_contiguous() else back


def _put_rows(x: Tensor, axis: int, index: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Write to slices along an axis as to rows of the flattened leading axes; nothing is moved."""
    size, blocks = x.shape[axis], prod(x.shape[:axis])
    count, behind = blocks * size, x.shape[axis + 1 :]
    # An index out of range must stay so: it must not reach the next block.
    index = index.to(torch.int64)
    is_valid = (index >= -size) & (index < size)
    row = torch.where(is_valid, torch.where(index < 0, index + size, index), count)
    starts = torch.arange(blocks, device=x.device) * size
    rows = (starts.view([blocks, *[1] * index.dim()]) + row).flatten()
    new = values.reshape([rows.shape[0], *behind])
    return x.view([count, *behind]).index_put((rows,), new, accumulate).view(x.shape)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Read at indices of the flattened tensor."""
    return aten.index.Tensor(x.reshape(-1), [index.reshape(-1)]).view(index.shape)


def along_axis(op: Any) -> Callable[..., Any]:
    """A rule for ops along an axis: the compiler fails for rank 0 and for negative axes."""

    def rule(x: Tensor, dim: int, *args: Any, **kwargs: Any) -> Tensor:
        if op in _COMBINE and is_empty(args[0]):
            return x.clone()
        if x.dtype == torch.bool and op in _COMBINING:
            wide = [a.to(torch.int32) if _is_bool(a) else a for a in args]
            return op(x.to(torch.int32), dim, *wide, **kwargs).to(torch.bool)
        if x.dim() and op in _COMBINE and _is_single(args[0]):
            return _scatter_one(_COMBINE[op], x, dim, *args, **kwargs)
        if x.dim():
            return NotImplemented if dim >= 0 else op(x, dim + x.dim(), *args, **kwargs)
        rows = [a.reshape(1) if isinstance(a, Tensor) else a for a in args]
        return op(x.view(1), 0, *rows, **kwargs).view([])

    return rule


# The compiler adds bools modulo 2.
_COMBINING = {aten.scatter_add.default, aten.scatter_reduce.two}


def _is_bool(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _is_single(index: Tensor) -> bool:
    sizes = list(index.shape)
    return all(isinstance(size, int) and size == 1 for size in sizes)


def _scatter_one(
    combine: Callable[..., Tensor],
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Write one element: the compiler's scatters take a single constant index as 0."""
    first = torch.zeros(1, dtype=torch.int64, device=x.device)
    places = [first] * x.dim()
    places[dim] = _without_negative(x, dim, index.reshape(1).to(torch.int64))
    new = source[(0,) * source.dim()].reshape(1)
    old = aten.index.Tensor(x, places)
    written = combine(old, new, *args, **kwargs)
    if _is_single(x):
        # The compiler rejects index_put here; reading the old value checks the index.
        return torch.where(places[dim] == 0, written, old).reshape(x.shape)
    return aten.index_put.default(x, places, written)


def _reduce_two(old: Tensor, new: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Reduce an element with the one that is scattered to it."""
    if not include_self:
        return new
    if reduce == "mean":
        total = old + new
        return total / 2 if old.is_floating_point() else total.div(2, rounding_mode="floor")
    return _REDUCE_TWO[reduce](old, new)


_REDUCE_TWO: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "amax": torch.maximum,
    "amin": torch.minimum,
}
_COMBINE: dict[Any, Callable[..., Tensor]] = {
    aten.scatter.src: lambda old, new: new,
    aten.scatter_add.default: torch.add,
    aten.scatter_reduce.two: _reduce_two,
}


def scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    """Scatter a number as a tensor."""
    if is_empty(index):
        return x.clone()
    return aten.scatter.src(x, dim, index, _fill_like(index, value, x))


def _fill_like(index: Tensor, value: float, x: Tensor) -> Tensor:
    return torch.full(index.shape, value, dtype=x.dtype, device=x.device)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """scatter_reduce in terms of reductions with include_self."""
    op = aten.scatter_reduce.two
    if x.dtype == torch.bool or _is_single(index) or is_empty(index):
        return along_axis(op)(x, dim, index, source, reduce, include_self=include_self)
    if reduce == "mean":
        return _scatter_mean(x, dim, index, source, include_self)
    if not include_self:
        # Start from the identity of the reduction, or from one of the reduced elements.
        first = _NEUTRAL.get(reduce, source)
        return op(torch.scatter(x, dim, index, first), dim, index, source, reduce)
    return along_axis(op)(x, dim, index, source, reduce)


def _scatter_mean(x: Tensor, dim: int, index: Tensor, source: Tensor, include_self: bool) -> Tensor:
    total = aten.scatter_reduce.two(x, dim, index, source, "sum", include_self=include_self)
    counts = torch.ones_like(x) if include_self else torch.zeros_like(x)
    counts = aten.scatter_add.default(counts, dim, index, torch.ones_like(source)).clamp(min=1)
    return total / counts if x.is_floating_point() else torch.floor_divide(total, counts)


_NEUTRAL: dict[str, Any] = {"sum": 0, "prod": 1}


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """gather with tensors of rank 0 and negative axes."""
    if x.dim():
        return NotImplemented if dim >= 0 else aten.gather.default(x, dim + x.dim(), index)
    return aten.gather.default(x.view(1), 0, index.reshape(-1)).view(index.shape)


def scatter_with_reduction(
    x: Tensor, dim: int, index: Tensor, source: Tensor | float, *, reduce: str
) -> Tensor:
    """scatter with a reduction, as scatter_reduce."""
    if not isinstance(source, Tensor):
        source = _fill_like(index, source, x)
    return aten.scatter_reduce.two(x, dim, index, source, _REDUCTIONS[reduce])


_REDUCTIONS = {"add": "sum", "multiply": "prod"}


def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """Write one value to slices; indices may be negative."""
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    rows = x if x.dim() else x.view(1)
    others = [size for axis, size in enumerate(rows.shape) if axis != dim % rows.dim()]
    if 0 in [size for size in others if isinstance(size, int)]:
        return x.clone()  # PyTorch does not check the indices either
    indices = [None] * (dim % rows.dim()) + [index]
    filled: Tensor = aten.index_put.default(rows, indices, value.to(x.dtype))
    return filled.view(x.shape)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """PyTorch's rule, with negative indices rejected."""
    rule = decomposition_table[aten.index_add.default]
    scaled = source if alpha == 1 else (source * alpha).to(x.dtype)
    added: Tensor = rule(x, dim, _without_negative(x, dim, index), scaled)
    return added


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """PyTorch's rule, with negative indices rejected."""
    rule = decomposition_table[aten.index_copy.default]
    copied: Tensor = rule(x, dim, _without_negative(x, dim, index), source)
    return copied


def _without_negative(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The indices, with negative ones out of range, so that `index_put` raises."""
    size = x.shape[dim] if x.dim() else 1
    return torch.where(index < 0, size, index)


def max_unpool(x: Tensor, indices: Tensor, output_size: list[int], *windows: list[int]) -> Tensor:
    """Write each element of a channel to its index in a larger one."""
    axes = len(output_size)
    channels = list(x.shape[: x.dim() - axes])
    flat = x.new_zeros([*channels, prod(output_size)])
    written = flat.scatter(-1, indices.flatten(-axes), x.flatten(-axes))
    layout = suggest_memory_format(x) if axes == 2 else torch.contiguous_format
    return written.view([*channels, *output_size]).clone(memory_format=layout)


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """index_reduce as scatter_reduce, with the index repeated along each slice."""
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
    source = source.to(x.dtype)
    steps = torch.arange(count, device=x.device)
    rows, columns = steps + max(-offset, 0), steps + max(offset, 0)
    front = x.movedim((dim1, dim2), (0, 1))
    written = front.index_put((rows, columns), source.movedim(-1, 0))
    return written.movedim((0, 1), (dim1, dim2))


def as_strided_scatter(
    x: Tensor, source: Tensor, size: list[int], stride: list[int], offset: int | None = None
) -> Tensor:
    """Write to a strided view of the flattened tensor."""
    if has_overlap(size, stride):
        return NotImplemented
    places = _strided_indices(x, size, stride, offset)
    return NotImplemented if places is None else put(x, places, source.to(x.dtype))


def as_strided(x: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    """Read a strided view of the flattened tensor."""
    if 0 in size:
        return x.new_empty(size)
    places = _strided_indices(x, size, stride, offset)
    return NotImplemented if places is None else take(x, places)


def _strided_indices(
    x: Tensor, size: list[int], stride: list[int], offset: int | None
) -> Tensor | None:
    """Indices into the flattened tensor; None if the strides reach outside of it."""
    # The offset is relative to the storage, and x may start later.
    start: Any = 0 if offset is None else offset - x.storage_offset()
    last = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not x.is_contiguous() or 0 in size or start < 0 or last >= x.numel():
        return None
    places = torch.full((), start, dtype=torch.int64, device=x.device)
    for length, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(length, device=x.device) * step
    return places


def select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """PyTorch's rule, with a source of the same dtype."""
    if keeps_overlap(x):
        return NotImplemented
    rule = decomposition_table[aten.select_scatter.default]
    written: Tensor = rule(x, source.to(x.dtype), dim, index)
    return written


def slice_scatter(x: Tensor, source: Tensor, *place: Any, **named: Any) -> Tensor:
    """slice_scatter of a source with the same dtype, not empty and smaller than the tensor.

    IREE 3.13 drops a source of dynamic size that covers the whole tensor and is computed from it.
    """
    if keeps_overlap(x):
        return NotImplemented
    if 0 in source.shape:
        return x.clone()
    if all(statically_known_true(a == b) for a, b in zip(source.shape, x.shape, strict=True)):
        return source.to(x.dtype).clone()
    if source.dtype == x.dtype:
        return NotImplemented
    return aten.slice_scatter.default(x, source.to(x.dtype), *place, **named)


def roll(x: Tensor, shifts: list[int], dims: Sequence[int] = ()) -> Tensor:
    """Swap the two pieces of each axis; a dynamic axis is gathered."""
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        length = x.shape[dim]
        if not isinstance(length, int):
            # The pieces of a dynamic axis would have modulo expressions as sizes, in all later ops.
            places = torch.arange(length, device=x.device) - shift % length
            x = x.index_select(dim, torch.where(places < 0, places + length, places))
        elif length:
            cut = length - shift % length
            pieces = [x.narrow(dim, cut, length - cut), x.narrow(dim, 0, cut)]
            x = torch.cat(pieces, dim)
    return x.clone()


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the elements of the source, in order, where the mask is true."""
    if is_empty(source):
        return NotImplemented
    x, mask = torch.broadcast_tensors(x, mask)
    chosen = mask.reshape(-1)
    places = torch.where(chosen, chosen.to(torch.int64).cumsum(0) - 1, 0)
    return torch.where(mask, source.reshape(-1)[places].view(x.shape), x)


def masked_scatter_backward(gradient: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    """The gradients where the mask is true, in order; zero for the rest of the source."""
    count = prod(sizes)
    chosen = mask.expand(gradient.shape).reshape(-1)
    # An extra element receives the gradients that are not selected.
    places = torch.where(chosen, chosen.to(torch.int64).cumsum(0) - 1, count)
    room = gradient.new_zeros(count + 1)
    return room.index_put((places,), gradient.reshape(-1), True).narrow(0, 0, count).view(sizes)


def replication_pad_backward(gradient: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    """Add the gradients of the copies to each element, axis by axis."""
    for pair in range(len(padding) // 2):
        axis = x.dim() - 1 - pair
        copies = torch.arange(gradient.shape[axis], device=x.device) - padding[2 * pair]
        origin = copies.clamp(0, x.shape[axis] - 1)
        shape = list(gradient.shape)
        shape[axis] = x.shape[axis]
        gradient = torch.index_add(gradient.new_zeros(shape), axis, origin, gradient)
    return gradient


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """A histogram with `bins` bins of equal width."""
    if not x.is_floating_point() or x.numel() == 0:
        return NotImplemented
    flat = x.reshape(-1)
    low, high = (torch.full((), float(v), dtype=x.dtype, device=x.device) for v in (min, max))
    if min == max:
        # An empty range means the range of the data.
        low, high = (flat.amin(), flat.amax()) if min == 0 else (low, high)
        is_empty_range = low == high
        low = torch.where(is_empty_range, low - 1, low)
        high = torch.where(is_empty_range, high + 1, high)
    place = ((flat - low) * (bins / (high - low))).floor().clamp(max=bins - 1)
    counted = (flat >= low) & (flat <= high)
    place = torch.where(counted, place, -1.0)
    steps = torch.arange(bins, device=x.device, dtype=x.dtype)
    return (place == steps.unsqueeze(1)).sum(1).to(x.dtype)


_ALONG_AXIS = (
    aten.scatter.src,
    aten.scatter_add.default,
    aten.index_select.default,
)

RULES: dict[Any, Callable[..., Any]] = {
    **{op: along_axis(op) for op in _ALONG_AXIS},
    aten.scatter.value: scatter_value,
    aten.scatter_reduce.two: scatter_reduce,
    aten.scatter.reduce: scatter_with_reduction,
    aten.scatter.value_reduce: scatter_with_reduction,
    aten.index_put.default: index_put,
    aten.put.default: put,
    aten.take.default: take,
    aten.gather.default: gather,
    aten.index_fill.int_Scalar: index_fill,
    aten.index_fill.int_Tensor: index_fill,
    aten.index_add.default: index_add,
    aten.index_copy.default: index_copy,
    aten.max_unpool2d.default: max_unpool,
    aten.max_unpool3d.default: max_unpool,
    aten.index_reduce.default: index_reduce,
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten.select_scatter.default: select_scatter,
    aten.slice_scatter.default: slice_scatter,
    aten.roll.default: roll,
    aten.masked_scatter.default: masked_scatter,
    aten.masked_scatter_backward.default: masked_scatter_backward,
    aten.replication_pad1d_backward.default: replication_pad_backward,
    aten.replication_pad2d_backward.default: replication_pad_backward,
    aten.replication_pad3d_backward.default: replication_pad_backward,
    aten.histc.default: histc,
}

# Under torch.compile, views stay views.
EXPORTED: dict[Any, Callable[..., Any]] = {aten.as_strided.default: as_strided}
