"""Compare the results of a candidate with the default's, which rounds in another order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# What sums in another order may differ by, of the largest magnitude in a tensor.
_TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def disagreement(expected: Sequence[Tensor], results: Sequence[Tensor]) -> str | None:
    """How results differ by more than rounding explains; None if they do not."""
    for number, (wanted, given) in enumerate(zip(expected, results, strict=True)):
        problem = _difference(wanted, given)
        if problem is not None:
            return f"result {number} {problem}"
    return None


def _difference(wanted: Tensor, given: Tensor) -> str | None:
    if not wanted.is_floating_point():
        count = int((wanted != given).sum())
        return f"differs in {count} elements" if count else None
    tolerance = _TOLERANCES.get(wanted.dtype, 2 * torch.finfo(wanted.dtype).eps)
    wide = torch.float64 if wanted.dtype == torch.float64 else torch.float32
    wanted, given = wanted.to(wide), given.to(wide)
    is_finite = torch.isfinite(wanted)
    others = torch.where(is_finite, 0.0, wanted), torch.where(is_finite, 0.0, given)
    if not torch.allclose(*others, rtol=0, atol=0, equal_nan=True):
        return "has nan or infinity elsewhere"
    wanted, given = (torch.where(is_finite, x, 0.0) for x in (wanted, given))
    if not wanted.numel():
        return None
    scale = float(wanted.abs().max())
    error = float((wanted - given).abs().max())
    if error <= tolerance * scale:
        return None
    return f"differs by {error:.3g}, where the largest magnitude is {scale:.3g}"
