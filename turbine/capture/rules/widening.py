"""Compute functions in a wider type than the argument's, and round once at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Tensor]


def in_double(function: Function) -> Function:
    """Compute a function in f64 and round to PyTorch's result dtype; complex is not handled."""

    @wraps(function)
    def call_in_double(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.is_complex():
            return NotImplemented
        return function(x.to(torch.float64), *args, **kwargs).to(result_dtype(x))

    return call_in_double


def result_dtype(x: Tensor) -> torch.dtype:
    """PyTorch's result dtype for a function of x: its own, or the default for integers."""
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def promote_dtypes(a: Tensor, b: Tensor) -> torch.dtype:
    """PyTorch's result dtype for a function of two tensors: the default one for integers."""
    dtype = torch.result_type(a, b)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split an f64 number into a sum of two of at most 26 bits, the leading one first."""
    spread = x * (2.0**27 + 1)
    high = spread - (spread - x)
    return high, x - high


def double_only(function: Function) -> Function:
    """Apply a rule to f64 only; narrower types use the compiler's code."""

    @wraps(function)
    def apply_rule(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype != torch.float64:
            return NotImplemented
        return function(x, *args, **kwargs)

    return apply_rule
