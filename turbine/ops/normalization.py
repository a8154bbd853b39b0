"""RMS normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from turbine.capture.sizes import hint
from turbine.ops.argument_checks import require, require_floats, shape, wide
from turbine.ops.declaration import custom_op

_NAME = "turbine::rms_norm"


@custom_op(f"{_NAME}(Tensor x, Tensor? weight=None, float eps=1e-6) -> Tensor")
def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x over the root mean square of its last axis, times weight; computed in float32 or wider."""
    require_floats(_NAME, x=x, weight=weight)
    require(x.dim() >= 1, _NAME, "x has no axis")
    y = wide(x)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        fits = weight.dim() == 1 and weight.shape[0] == x.shape[-1]
        fact = (
            f"weight has shape {shape(weight)}, expected [{hint(x.shape[-1])}], the last axis of x"
        )
        require(fits, _NAME, fact)
        y = y * weight
    return y.to(x.dtype)
