"""Scaled dot product attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from turbine.capture.sizes import hint
from turbine.ops.argument_checks import require, require_floats, shape, wide
from turbine.ops.declaration import custom_op

_NAME = "turbine::attention"


@custom_op(
    f"{_NAME}(Tensor query, Tensor key, Tensor value, Tensor? mask=None, bool causal=False, "
    "float? scale=None) -> Tensor",
    static=dict.fromkeys(("query", "key", "value"), (-3, -1)),  # heads and their sizes
)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention of query [..., heads, length, size] over keys and values; scores are float32.

    Key and value may have fewer heads: each is then shared by several query heads. `mask` is True
    where a query attends, or a number to add to the score; with `causal`, query i attends to keys
    0 to i. A row that is fully masked gives zeros.
    """
    _check(query, key, value, mask)
    heads = query.dim() > 2 and bool(query.shape[-3] != key.shape[-3])
    result = functional.scaled_dot_product_attention(
        wide(query),
        wide(key),
        wide(value),
        _merge_causal_mask(query, key, mask, causal),
        is_causal=causal and mask is None,
        scale=scale,
        enable_gqa=heads,
    )
    return result.to(query.dtype)


def _merge_causal_mask(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool
) -> Tensor | None:
    """The mask combined with the causal mask: PyTorch takes one or the other."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        mask = mask.to(wide(query).dtype)
    if not causal:
        return mask
    sizes = (query.shape[-2], key.shape[-2])
    past = torch.ones(sizes, dtype=torch.bool, device=query.device).tril()
    return past & mask if mask.dtype == torch.bool else mask.masked_fill(~past, float("-inf"))


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    require_floats(_NAME, query=query, key=key, value=value)
    rank = query.dim()
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        fact = f"{name} has shape {shape(tensor)}, expected [..., length, size]"
        require(tensor.dim() >= 2 and tensor.dim() == rank, _NAME, f"{fact} and one rank for all")
    shapes = f"query is {shape(query)}, key {shape(key)}, value {shape(value)}"
    require(query.shape[-1] == key.shape[-1], _NAME, f"{shapes}: the sizes of query and key differ")
    require(key.shape[:-1] == value.shape[:-1], _NAME, f"{shapes}: key and value differ in length")
    require(query.shape[:-3] == key.shape[:-3], _NAME, f"{shapes}: the batches differ")
    if rank > 2:
        shared = key.shape[-3] > 0 and query.shape[-3] % key.shape[-3] == 0
        fact = f"{shapes}: the query's heads are not a multiple of the key's"
        require(query.shape[-3] == key.shape[-3] or shared, _NAME, fact)
    if mask is not None:
        _check_mask(query, key, mask)


def _check_mask(query: Tensor, key: Tensor, mask: Tensor) -> None:
    is_real = mask.dtype == torch.bool or mask.dtype.is_floating_point
    require(is_real, _NAME, f"mask is of {mask.dtype}, expected bool or a floating dtype")
    scores = [*query.shape[:-1], key.shape[-2]]
    sizes = zip(reversed(scores), reversed(mask.shape), strict=False)
    fits = mask.dim() <= len(scores) and all(theirs in (1, ours) for ours, theirs in sizes)
    fact = (
        f"mask has shape {shape(mask)}, expected one that broadcasts to {list(map(hint, scores))}"
    )
    require(fits, _NAME, fact)
