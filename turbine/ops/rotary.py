"""Rotary embeddings: positions in, tables of angles out; heads and tables in, heads out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turbine.capture.sizes import hint
from turbine.ops.argument_checks import require, require_floats, shape, wide
from turbine.ops.declaration import custom_op

_TABLES = "turbine::rotary_tables"
_NAME = "turbine::rotary_embedding"


@custom_op(f"{_TABLES}(Tensor positions, int dim, float base=10000.0) -> (Tensor cos, Tensor sin)")
def rotary_tables(positions: Tensor, dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [*positions, dim / 2], of position * base ** (-2 i / dim)."""
    require(dim > 0 and dim % 2 == 0, _TABLES, f"dim is {dim}, expected an even number above 0")
    require(base > 0, _TABLES, f"base is {base}, expected a number above 0")
    is_real = not (positions.dtype.is_complex or positions.dtype == torch.bool)
    require(is_real, _TABLES, f"positions are of {positions.dtype}, expected integers or floats")
    # In float64: a float32 angle of 8000 has only three correct decimals.
    steps = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64).unsqueeze(-1) * torch.exp(steps * (-math.log(base) / dim))
    return angles.cos().to(torch.float32), angles.sin().to(torch.float32)


@custom_op(f"{_NAME}(Tensor x, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor")
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x with pairs of elements of its last axis rotated by the angles of the tables.

    Element i is paired with element i + half, where half is the tables' size, or with its neighbour
    if pairs are `interleaved`. Elements beyond twice the tables' size are unchanged.
    """
    count = _check_shapes(x, cos, sin)
    turned = wide(x[..., : 2 * count])
    if interleaved:
        first, second = turned.unflatten(-1, (count, 2)).unbind(-1)
    else:
        first, second = turned[..., :count], turned[..., count:]
    pair = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([turned.to(x.dtype), x[..., 2 * count :]], -1)


def _check_shapes(x: Tensor, cos: Tensor, sin: Tensor) -> int:
    """How many pairs are rotated."""
    require_floats(_NAME, x=x)
    require_floats(_NAME, cos=cos, sin=sin)
    same = cos.shape == sin.shape and cos.dim() >= 1
    require(same, _NAME, f"cos has shape {shape(cos)} and sin {shape(sin)}, expected the same")
    count = cos.shape[-1]
    fits = x.dim() >= cos.dim() and 2 * count <= x.shape[-1]
    pairs = zip(reversed(x.shape[:-1]), reversed(cos.shape[:-1]), strict=False)
    fits = fits and all(theirs in (1, ours) for ours, theirs in pairs)
    fact = (
        f"cos has shape {shape(cos)}, expected one that ends in {hint(x.shape[-1]) // 2} or less "
        f"and broadcasts over x {shape(x)}"
    )
    require(x.dim() >= 1 and fits, _NAME, fact)
    return count
