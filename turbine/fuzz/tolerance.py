"""Compare answers up to the difference that rounding explains.

Where plain tolerances do not hold, the program runs again in eager PyTorch with noise of a few
units in the last place after each op. An element may differ as much as these runs do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from turbine.runtime.torch_buffers import is_writable

NOISY_RUNS = 16
_ULPS = 4.0  # of noise
_TIMES_SPREAD = 4.0
_REASON_LENGTH = 200


class Noise(TorchDispatchMode):
    """Each new float tensor is off by a few units in the last place."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        # Views and writes keep their memory; noise is for results of their own.
        if all(r.alias_info is None for r in func._schema.returns):
            pytree.tree_map_only(Tensor, self._disturb, results)
        return results

    def _disturb(self, x: Tensor) -> None:
        # Elements that share memory would get the noise of all of them.
        if not x.is_floating_point() or not x.numel() or not is_writable(x):
            return
        step = torch.finfo(x.dtype).eps * _ULPS
        noise = torch.rand(x.shape, generator=self.generator, dtype=torch.float32) * 2 - 1
        x.mul_((1 + step * noise.double()).to(x.dtype))


def widen(x: Tensor) -> Tensor:
    """A float argument in float64."""
    if not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def difference(
    found: Sequence[Any], expected: Sequence[Any], samples: Callable[[], list[list[Any]]]
) -> str | None:
    """How answers differ beyond rounding; `samples` gives others that are as good as expected."""
    if len(found) != len(expected):
        return f"{len(found)} results instead of {len(expected)}"
    apart: list[int] = []
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if (ours is None) != (theirs is None):
            return f"value {k} is {_describe(ours)} instead of {_describe(theirs)}"
        if theirs is None:
            continue
        if _describe(ours) != _describe(theirs):
            return f"value {k} is {_describe(ours)} instead of {_describe(theirs)}"
        if _mismatch(ours, theirs) is not None:
            apart.append(k)
    if not apart:
        return None
    others = samples()
    for k in apart:
        same_kind = [s[k] for s in others if len(s) == len(expected) and _fits(s[k], expected[k])]
        if not _is_explained(found[k], expected[k], same_kind):
            return f"value {k}: {_mismatch(found[k], expected[k])}"
    return None


def _describe(value: Tensor | None) -> str:
    if value is None:
        return "None"
    return f"{value.dtype} {list(value.shape)}"


def _mismatch(ours: Tensor, theirs: Tensor) -> str | None:
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())[:_REASON_LENGTH]
    return None


def _fits(sample: Any, expected: Tensor) -> bool:
    return isinstance(sample, Tensor) and sample.shape == expected.shape


def _is_explained(ours: Tensor, theirs: Tensor, samples: Sequence[Tensor]) -> bool:
    """Whether each element is within what the samples show rounding can do to it."""
    wanted, got = theirs.double(), ours.double()
    spread = torch.zeros_like(wanted)
    for sample in samples:
        other = sample.double()
        same = (other == wanted) | (other.isnan() & wanted.isnan())
        apart = torch.where(same, 0.0, (other - wanted).abs())
        # nan or an infinity in one run only: the value is decided by rounding.
        spread = torch.maximum(spread, torch.nan_to_num(apart, nan=torch.inf, posinf=torch.inf))
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    rtol, atol = _tolerances(theirs.dtype)
    allowed = _TIMES_SPREAD * spread + atol + rtol * wanted.abs()
    return bool((same | ((got - wanted).abs() <= allowed) | (spread == torch.inf)).all())


def _tolerances(dtype: torch.dtype) -> tuple[float, float]:
    if not dtype.is_floating_point:
        return 0.0, 0.0
    eps = torch.finfo(dtype).eps
    return 16 * eps, 16 * eps
