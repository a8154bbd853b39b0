"""Layouts: what PyTorch knows of a tensor whose values are not computed yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten


class Layout:
    """Sizes, strides, offset and dtype; equal layouts are one object.

    `repeats` says whether elements share memory, so that PyTorch refuses to write to them.
    `wrapper` and `whole` belong to `tensor` and `storage`, which ask for them with each op.
    """

    __slots__ = ("dtype", "nbytes", "offset", "repeats", "size", "stride", "whole", "wrapper")

    def __init__(
        self, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype
    ) -> None:
        self.size = size
        self.stride = stride
        self.offset = offset
        self.dtype = dtype
        self.repeats = any(n > 1 and not step for n, step in zip(size, stride, strict=True))
        self.nbytes = math.prod(size) * dtype.itemsize  # of the values, without gaps between them
        self.wrapper: tuple[Any, ...] | None = None
        self.whole: Any = None

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.size)}".removeprefix("torch.")

    def make(self, device: str) -> Tensor:
        """A tensor of this layout, without values."""
        base = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)
        if not self.offset:
            return base
        span = sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True)) + 1
        memory = torch.empty(self.offset + max(span, 0), dtype=self.dtype, device=device)
        return memory.as_strided(self.size, self.stride, self.offset)


_known: dict[Any, Layout] = {}


def layout_of(tensor: Tensor) -> Layout:
    """The layout of a tensor."""
    offset = int(tensor.storage_offset())
    key = tuple(tensor.shape), tensor.stride(), offset, tensor.dtype
    found = _known.get(key)
    return found if found is not None else _known.setdefault(key, Layout(*key))


class NotRecordable(Exception):
    """An argument or a result that a program cannot hold."""


# The layouts of an op's results, or None for those that are not defined, and how they are nested.
Results = tuple[list[Layout | None], TreeSpec | None]


def infer(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Results:
    """The layouts of what a call of meta tensors gives, by PyTorch's meta kernels."""
    result = target(*args, **kwargs)
    if isinstance(result, Tensor):
        return [layout_of(result)], None
    leaves, spec = tree_flatten(result)
    if not all(leaf is None or isinstance(leaf, Tensor) for leaf in leaves):
        raise NotRecordable("a result that is not a tensor")
    return [None if leaf is None else layout_of(leaf) for leaf in leaves], spec
