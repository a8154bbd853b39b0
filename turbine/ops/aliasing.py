"""Find tensors of a call that share memory, for tensors with data and traced ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, pairwise
from math import gcd

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from turbine.runtime import overlap, torch_buffers
from turbine.runtime.overlap import Layout


def shared_pairs(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """The names of every pair of tensors that share memory."""
    for (name, one), (other_name, other) in combinations(tensors.items(), 2):
        if share_memory(one, other):
            yield name, other_name


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share an element's memory; True if in doubt."""
    if has_memory(one) and has_memory(other):
        return overlap.share_memory(torch_buffers.layout(one), torch_buffers.layout(other))
    if one is other:
        return True
    if not (is_traced(one) and is_traced(other)):
        return False
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    return not _are_apart(one, other)


def are_separate(tensors: Iterable[Tensor]) -> bool:
    """Whether tensors are dense and share no memory: a quick answer, False if in doubt."""
    spans = []
    for tensor in tensors:
        if not has_memory(tensor) or not tensor.is_contiguous():
            return False
        start = tensor.data_ptr()
        spans.append((start, start + tensor.nbytes))
    spans.sort()
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements of a tensor with data may share memory."""
    return has_memory(tensor) and overlap.overlaps_itself(torch_buffers.layout(tensor))


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory of the CPU or of a GPU."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    is_known = tensor.device.type in ("cpu", "cuda")
    return plain and is_known and not torch._is_functional_tensor(tensor)


def is_traced(tensor: Tensor) -> bool:
    """Whether a tensor is traced, and has no data."""
    return tensor.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(
        tensor
    )


def _are_apart(one: Tensor, other: Tensor) -> bool:
    """Whether views of one storage share no element, for all values of dynamic sizes."""
    if _is_behind(one, other) or _is_behind(other, one):
        return True
    numbers = [*_numbers(one), *_numbers(other)]
    if all(isinstance(number, int) for number in numbers):
        return not overlap.share_memory(_layout(one), _layout(other))
    between = one.storage_offset() - other.storage_offset()
    strides = (*one.stride(), *other.stride())
    known = all(isinstance(number, int) for number in (between, *strides))
    if not known or one.element_size() != other.element_size():
        return False
    # Offsets of elements from the first one are multiples of this.
    step = gcd(*map(int, strides))
    return step > 1 and int(between) % step != 0


def _is_behind(one: Tensor, other: Tensor) -> bool:
    """Whether a view starts after the other's last element."""
    steps = zip(other.shape, other.stride(), strict=True)
    last = other.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    first, end = one.storage_offset() * one.element_size(), (last + 1) * other.element_size()
    return guard_or_false(first >= end)


def _numbers(tensor: Tensor) -> tuple[int, ...]:
    return (*tensor.shape, *tensor.stride(), tensor.storage_offset())


def _layout(tensor: Tensor) -> Layout:
    """The layout of a view in its storage."""
    size = tensor.element_size()
    strides = tuple(step * size for step in tensor.stride())
    return Layout(int(tensor.storage_offset()) * size, tuple(tensor.shape), strides, size)
