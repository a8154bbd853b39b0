"""Decide whether elements of a strided view share memory, from its sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from turbine.capture.sizes import hint


def has_overlap(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether two elements have the same place, at the example's sizes."""
    steps = [(hint(step), hint(n)) for n, step in zip(shape, strides, strict=True)]
    reach = 1
    for step, size in sorted(one for one in steps if one[1] > 1):
        if step < reach:
            return _repeats_places(steps)
        reach += (size - 1) * step
    return False


def _repeats_places(steps: list[tuple[int, int]]) -> bool:
    places = numpy.zeros((), numpy.int64)
    for step, size in steps:
        places = numpy.add.outer(places, numpy.arange(size) * step)
    return numpy.unique(places).size < places.size


def keeps_overlap(tensor: torch.Tensor) -> bool:
    """Whether PyTorch copies a tensor such that its elements share memory in the copy too.

    It gives expanded tensors memory for each element.
    """
    is_expanded = any(
        isinstance(step, int) and step == 0 and hint(size) > 1
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return not is_expanded and has_overlap(tensor.shape, tensor.stride())
