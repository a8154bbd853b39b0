"""Sorting, selection and extremes: short rows by comparing all pairs, long ones by a kernel.

The compiler's sort is a bubble sort on one core, and mishandles nan, as argmax and argmin do. In
PyTorch, nan is larger than every number. Searches of dynamic lengths compare all pairs, too; where
an op can fall back to PyTorch, the rules in `OF_STATIC_LENGTHS` leave them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from turbine.capture.declared_ops import KERNELS
from turbine.capture.rules.shapes import copy_strided
from turbine.capture.sizes import hint

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]

# One step of selection costs as much as comparing with this many elements.
_STEP_COST = 4
LONGEST = 128  # comparing all pairs is quadratic
_SHORTEST_SCAN = 32  # a shorter row does not pay for a program


def _on_rows(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a rule to nonempty rows of real numbers."""

    @wraps(rule)
    def apply_rule(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        empty = any(isinstance(n, int) and n == 0 for n in x.shape)
        return NotImplemented if empty or x.is_complex() else rule(x, *args, **kwargs)

    return apply_rule


@_on_rows
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Pair:
    """Sorted values and their indices; the sort is stable."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    stride = torch.empty_like(x).stride()
    values, index = _move_back(_sort_rows(x.movedim(dim, -1), descending), dim)
    return copy_strided(values, stride), copy_strided(index, stride)


def stable_sort(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Pair:
    """Sort, which is stable anyway."""
    return sort(x, dim, descending)


@_on_rows
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """The first k values in order, and their indices."""
    if x.dim() == 0:
        return sort(x, dim, largest)
    row = x.movedim(dim, -1)
    if _is_long(x.shape[dim]) and isinstance(k, int) and k > 0:
        return _copy_back(_by_kernel(row, "topk", k, largest), dim)
    if isinstance(k, int) and 0 < k <= hint(x.shape[dim]) // _STEP_COST:
        return _gather_pair(x, _first_few(row, k, largest).movedim(-1, dim), dim)
    values, index = _sort_rows(row, largest)
    return _copy_back((values.narrow(-1, 0, k), index.narrow(-1, 0, k)), dim)


@_on_rows
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The k-th smallest, counted from 1."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, index = _sort_rows(x.movedim(dim, -1), False)
    pair = values.narrow(-1, k - 1, 1), index.narrow(-1, k - 1, 1)
    return _squeeze(_copy_back(pair, dim), dim, keepdim)


@_on_rows
def median(x: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    """The lower median; nan if the row has a nan."""
    return _median(x, dim, keepdim, skips_nan=False)


@_on_rows
def nanmedian(x: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    """The lower median without nan; nan if there is no number."""
    return _median(x, dim, keepdim, skips_nan=True)


def _median(x: Tensor, dim: int, keepdim: bool, *, skips_nan: bool) -> Pair:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    row = x.movedim(dim, -1)
    numbers = (~(row != row)).sum(-1, keepdim=True)
    middle = torch.div(numbers - 1, 2, rounding_mode="floor").clamp(min=0)
    # In a row with nan, the first nan, which comes after all numbers.
    wanted = middle if skips_nan else torch.where(numbers < row.shape[-1], numbers, middle)
    if _is_long(row.shape[-1]):
        index = _sort_rows(row, False)[1].gather(-1, wanted)
    else:
        places = torch.arange(row.shape[-1], device=x.device)
        index = torch.where(_rank(row, False) == wanted, places, 0).sum(-1, keepdim=True)
    return _squeeze(_gather_pair(x, index.movedim(-1, dim), dim), dim, keepdim)


@_on_rows
def median_of_all(x: Tensor) -> Tensor:
    """The median of all elements."""
    return median(x.reshape(-1), 0)[0]


@_on_rows
def nanmedian_of_all(x: Tensor) -> Tensor:
    """The median of all elements but nan."""
    return nanmedian(x.reshape(-1), 0)[0]


def _first_few(row: Tensor, k: int, largest: bool) -> Tensor:
    """The indices of the first k elements in order, by k selections."""
    places = torch.arange(row.shape[-1], device=row.device)
    taken = torch.zeros_like(row, dtype=torch.bool)
    found = []
    for _ in range(k):
        found.append(_foremost(row, taken, places, largest))
        taken = taken | (places == found[-1])
    return torch.cat(found, -1)


def _foremost(row: Tensor, taken: Tensor, places: Tensor, largest: bool) -> Tensor:
    number = row.to(torch.int32) if row.dtype == torch.bool else row
    held = torch.where(taken, _identity_of(number.dtype, smallest=largest), number)
    held = torch.where(held != held, _identity_of(number.dtype, smallest=largest), held)
    best = held.amax(-1, keepdim=True) if largest else held.amin(-1, keepdim=True)
    chosen = ~taken & (number == best)
    unordered = ~taken & (number != number)
    first = unordered if largest else chosen
    chosen = torch.where(first.any(-1, keepdim=True), first, chosen | unordered)
    return torch.where(chosen, places, row.shape[-1]).amin(-1, keepdim=True)


def _sort_rows(row: Tensor, descending: bool) -> Pair:
    """The elements in order along the last axis, and their indices."""
    if _is_long(row.shape[-1]):
        return _by_kernel(row, "sort", descending)
    places = torch.arange(row.shape[-1], device=row.device)
    rank = _rank(row, descending).unsqueeze(-2)
    index = torch.where(rank == places.unsqueeze(-1), places, 0).sum(-1)
    return _gather_pair(row, index, -1)


def _by_kernel(row: Tensor, name: str, *args: Any) -> Pair:
    """Call a kernel of matrices, which gives values and indices."""
    values, index = KERNELS[name](row.reshape(-1, row.shape[-1]), *args)
    shape = *row.shape[:-1], values.shape[-1]
    return values.view(shape), index.view(shape)


def _move_back(pair: Pair, dim: int) -> Pair:
    return pair[0].movedim(-1, dim), pair[1].movedim(-1, dim)


def _copy_back(pair: Pair, dim: int) -> Pair:
    values, index = (
        part.clone(memory_format=torch.contiguous_format) for part in _move_back(pair, dim)
    )
    return values, index


def _is_long(size: int | torch.SymInt) -> bool:
    """Whether a row of this size is sorted by a kernel."""
    return "sort" in KERNELS and not (isinstance(size, int) and size <= LONGEST)


def _rank(row: Tensor, descending: bool) -> Tensor:
    """The position of each element in the sorted row."""
    if row.dtype == torch.bool:
        row = row.to(torch.int32)
    each, others = row.unsqueeze(-1), row.unsqueeze(-2)
    places = torch.arange(row.shape[-1], device=row.device)
    same = (each == others) | ((each != each) & (others != others))
    earlier = same & (places < places.unsqueeze(-1))
    return (_precedes(others, each, descending) | earlier).sum(-1)


def _precedes(a: Tensor, b: Tensor, descending: bool) -> Tensor:
    # Not a == a: the compiler folds that to true, for nan too.
    if descending:
        return (a > b) | ((a != a) & ~(b != b))
    return (a < b) | (~(a != a) & (b != b))


def _gather_pair(x: Tensor, index: Tensor, dim: int) -> Pair:
    index = index.contiguous()
    return x.gather(dim, index), index


def _squeeze(pair: Pair, dim: int, keepdim: bool) -> Pair:
    return pair if keepdim else (pair[0].squeeze(dim), pair[1].squeeze(dim))


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first maximum; nan counts as largest."""
    return _extreme(x, dim, keepdim, torch.amax)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first minimum; nan counts as smallest."""
    return _extreme(x, dim, keepdim, torch.amin)


def max_along(x: Tensor, dim: int, keepdim: bool = False) -> Pair:
    """The maximum and its index."""
    return _with_place(x, dim, keepdim, argmax)


def min_along(x: Tensor, dim: int, keepdim: bool = False) -> Pair:
    """The minimum and its index."""
    return _with_place(x, dim, keepdim, argmin)


def _with_place(x: Tensor, dim: int, keepdim: bool, find: Callable[..., Tensor]) -> Pair:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    index = find(x, dim, True)
    return _squeeze(_gather_pair(x, index, dim), dim, keepdim)


def _extreme(x: Tensor, dim: int | None, keepdim: bool, reduce: Callable[..., Tensor]) -> Tensor:
    if x.dim() == 0:
        return torch.zeros_like(x, dtype=torch.int64)
    if dim is None:
        flat = _extreme(x.reshape(-1), 0, False, reduce)
        return flat.reshape([1] * x.dim()) if keepdim else flat
    size = x.shape[dim]
    shape = [size if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    places = torch.arange(size, device=x.device).view(shape)
    if x.dtype == torch.bool:
        x = x.to(torch.int32)
    best = x == reduce(x, dim, keepdim=True)
    if x.is_floating_point():
        unordered = x != x
        best = torch.where(unordered.any(dim, keepdim=True), unordered, best)
    return torch.where(best, places, size).amin(dim, keepdim=keepdim)


def amax(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """amax of a tensor of rank 0: a copy, since the compiler needs an axis."""
    return x.clone() if x.dim() == 0 else NotImplemented


@_on_rows
def cummax(x: Tensor, dim: int) -> Pair:
    """The running maximum, and the index of its last occurrence."""
    return _so_far(x, dim, descending=True)


@_on_rows
def cummin(x: Tensor, dim: int) -> Pair:
    """The running minimum, and the index of its last occurrence; nan propagates."""
    return _so_far(x, dim, descending=False)


def _so_far(x: Tensor, dim: int, *, descending: bool) -> Pair:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    if x.dtype == torch.bool:
        values, index = _so_far(x.to(torch.int32), dim, descending=descending)
        return values.to(torch.bool), index
    size = x.shape[dim]
    if "find_extremes" in KERNELS and not (isinstance(size, int) and size <= _SHORTEST_SCAN):
        found: Pair = KERNELS["find_extremes"]("cummax" if descending else "cummin", x, dim)
        return found
    row = x.movedim(dim, -1)
    places = torch.arange(size, device=x.device)
    others, seen = row.unsqueeze(-2), places <= places.unsqueeze(-1)
    held = torch.where(seen, others, _identity_of(row.dtype, smallest=descending))
    best = held.amax(-1, keepdim=True) if descending else held.amin(-1, keepdim=True)
    unordered = seen & (others != others)
    chosen = torch.where(unordered.any(-1, keepdim=True), unordered, seen & (others == best))
    index = torch.where(chosen, places, 0).amax(-1)
    return _gather_pair(x, index.movedim(-1, dim), dim)


def _identity_of(dtype: torch.dtype, *, smallest: bool) -> Tensor:
    if dtype.is_floating_point:
        limit = float("-inf") if smallest else float("inf")
    else:
        limit = torch.iinfo(dtype).min if smallest else torch.iinfo(dtype).max
    return torch.full((), limit, dtype=dtype)


def searchsorted(
    sequence: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The index of the first element that is not smaller, or larger; the end for nan."""
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    length = sequence.shape[-1]
    if isinstance(length, int) and length > LONGEST:
        place = _bisect(
            _to_comparable(sequence, values),
            _to_comparable(values, sequence),
            right or side == "right",
        )
        return place.to(torch.int32) if out_int32 else place
    row, each = (
        _to_comparable(sequence, values).unsqueeze(-2),
        _to_comparable(values, sequence).unsqueeze(-1),
    )
    if sequence.dim() == 1:
        row = row.squeeze(-2)
    after = row > each if right or side == "right" else row >= each
    if isinstance(length, int) and length == 0:
        place = torch.zeros_like(values, dtype=torch.int64)
    else:
        places = torch.arange(length, device=values.device)
        place = torch.where(after, places, length).amin(-1)
    return place.to(torch.int32) if out_int32 else place


def _bisect(row: Tensor, values: Tensor, right: bool) -> Tensor:
    """Where values belong in a sorted row, by halving the range that is left."""
    length = row.shape[-1]
    low = torch.zeros_like(values, dtype=torch.int64)
    high = torch.full_like(low, length)
    for _ in range(length.bit_length()):
        middle = (low + high) // 2
        place = middle.clamp(max=length - 1)
        found = row[place] if row.dim() == 1 else row.gather(-1, place)
        is_after = found > values if right else found >= values
        is_open = low < high
        low = torch.where(is_open & ~is_after, middle + 1, low)
        high = torch.where(is_open & is_after, middle, high)
    return low


def _to_comparable(x: Tensor, other: Tensor) -> Tensor:
    """Convert to the common dtype; bools to int32, since the compiler takes True for -1."""
    dtype = torch.result_type(x, other)
    return x.to(torch.int32 if dtype == torch.bool else dtype)


def bucketize(
    values: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """searchsorted with its arguments swapped."""
    return searchsorted(boundaries, values, out_int32=out_int32, right=right)


def bucketize_one(value: float, boundaries: Tensor, **options: Any) -> Tensor:
    """bucketize of a number."""
    return searchsorted_of_one(boundaries, value, **options)


def searchsorted_of_one(sequence: Tensor, value: float, **options: Any) -> Tensor:
    """searchsorted of a number."""
    dtype = torch.result_type(sequence, value)
    return searchsorted(sequence, torch.full((), value, dtype=dtype), **options)


RULES: dict[Any, Callable[..., Any]] = {
    aten.sort.default: sort,
    aten.sort.stable: stable_sort,
    aten.topk.default: topk,
    aten.kthvalue.default: kthvalue,
    aten.median.dim: median,
    aten.median.default: median_of_all,
    aten.nanmedian.dim: nanmedian,
    aten.nanmedian.default: nanmedian_of_all,
    aten.argmax.default: argmax,
    aten.argmin.default: argmin,
    aten.max.dim: max_along,
    aten.min.dim: min_along,
    aten.amax.default: amax,
    aten.amin.default: amax,
    aten.cummax.default: cummax,
    aten.cummin.default: cummin,
    aten.searchsorted.Tensor: searchsorted,
    aten.searchsorted.Scalar: searchsorted_of_one,
    aten.bucketize.Tensor: bucketize,
    aten.bucketize.Scalar: bucketize_one,
}


def _of_static_length(search: Callable[..., Tensor]) -> Callable[..., Any]:
    """Search if the length of the sequence is static."""

    @wraps(search)
    def apply_rule(sequence: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_static = isinstance(sequence.shape[-1], int)
        return search(sequence, *args, **kwargs) if is_static else NotImplemented

    return apply_rule


OF_STATIC_LENGTHS: dict[Any, Callable[..., Any]] = {
    aten.searchsorted.Tensor: _of_static_length(searchsorted),
    aten.searchsorted.Scalar: _of_static_length(searchsorted_of_one),
}
