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
    def call_in_double(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.is_complex():
            return NotImplemented
        return function(x.to(torch.float64), *args, **kwargs).to(result_dtype(x))

    return call_in_double


def result_dtype(x: Tensor) -> torch.dtype:
    """The dtype PyTorch gives a function of x: its own, or the default for integers."""
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def promote_dtypes(a: Tensor, b: Tensor) -> torch.dtype:
    """The dtype PyTorch gives a function of two numbers: the default one for integers."""
    dtype = torch.result_type(a, b)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """An f64 number as a sum of two of at most 26 bits, the leading ones first."""
    spread = x * (2.0**27 + 1)
    high = spread - (spread - x)
    return high, x - high


def double_only(function: Function) -> Function:
    """The rule applies to f64; narrower types keep the compiler's own code."""

    @wraps(function)
    def apply_rule(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype != torch.float64:
            return NotImplemented
        return function(x, *args, **kwargs)

    return apply_rule
