"""Compute a function in a wider type than its argument's and round once at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Tensor]


def in_double(function: Function) -> Function:
    """Real arguments are widened to f64, integers as PyTorch promotes them; complex is left."""

    @wraps(function)
    def widened(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.is_complex():
            return NotImplemented
        return function(x.to(torch.float64), *args, **kwargs).to(rounded_to(x))

    return widened


def rounded_to(x: Tensor) -> torch.dtype:
    """The dtype PyTorch gives a function of x: its own, or the default for integers."""
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def double_only(function: Function) -> Function:
    """The rule applies to f64; narrower types keep the compiler's own code."""

    @wraps(function)
    def guarded(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype != torch.float64:
            return NotImplemented
        return function(x, *args, **kwargs)

    return guarded
