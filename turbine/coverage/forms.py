"""Convert arguments to other forms: equal elements in another layout.

An op must not depend on how its arguments lie in memory, nor on which sizes were known when it was
compiled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Form = Callable[[Tensor, random.Random], Tensor]


def transpose(x: Tensor, chance: random.Random) -> Tensor:
    """Make the first axis contiguous."""
    order = list(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def make_strided(x: Tensor, chance: random.Random) -> Tensor:
    """Every second element of a longer row; the elements between are poison."""
    if x.dim() == 0:
        row = _poison(x, [3])
        return row[1].copy_(x)
    rows = _poison(x, [*x.shape[:-1], 2 * x.shape[-1] + 1])
    return rows[..., 1::2].copy_(x)


def _poison(x: Tensor, shape: Sequence[int]) -> Tensor:
    value = float("nan") if _is_float(x) else 1
    return torch.full(shape, value, dtype=x.dtype, device=x.device)


def expand(x: Tensor, chance: random.Random) -> Tensor:
    """Repeat one slice along an axis with stride 0."""
    return x.narrow(_long_axis(x, chance), 0, 1).clone().expand(x.shape)


def negate(x: Tensor, chance: random.Random) -> Tensor:
    """A lazily negated view."""
    return torch._neg_view(-x)


def conjugate(x: Tensor, chance: random.Random) -> Tensor:
    """A lazily conjugated view."""
    return x.conj().resolve_conj().conj()


def make_dynamic(x: Tensor, chance: random.Random) -> Tensor:
    """One size becomes a symbol wherever the op does not fix it."""
    torch._dynamo.maybe_mark_dynamic(x, _long_axis(x, chance))
    return x


def _long_axis(x: Tensor, chance: random.Random) -> int:
    return chance.choice([axis for axis, size in enumerate(x.shape) if size > 1])


def _has_long_axis(x: Tensor) -> bool:
    return any(size > 1 for size in x.shape)


def _is_matrix(x: Tensor) -> bool:
    return sum(size > 1 for size in x.shape) > 1


def _is_float(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


# A form -> how a tensor gets it, and which tensors it changes.
_LAYOUTS: dict[str, tuple[Form, Callable[[Tensor], bool]]] = {
    "transposed": (transpose, _is_matrix),
    "spread": (make_strided, lambda x: x.numel() > 0),
    "expanded": (expand, _has_long_axis),
    "negated": (negate, _is_float),
    "conjugated": (conjugate, torch.is_complex),
}


def mix(x: Tensor, chance: random.Random) -> Tensor:
    """One of the layouts that change this tensor."""
    give = chance.choice([form for form, applies in _LAYOUTS.values() if applies(x)])
    return give(x, chance)


FORMS = {
    **_LAYOUTS,
    "mixed": (mix, lambda x: x.numel() > 0),
    "dynamic": (make_dynamic, _has_long_axis),
}


def apply(form: str, tree: Any, seed: int) -> Any:
    """Nested arguments in a form; of random axes, those that follow from the seed."""
    give, applies = FORMS[form]
    chance = random.Random(f"{seed:x} {form}")

    def of(leaf: Any) -> Any:
        return give(leaf, chance) if is_plain(leaf) and applies(leaf) else leaf

    return pytree.tree_map(of, tree)


def can_apply(form: str, tree: Any) -> bool:
    """Whether a form changes any of the arguments."""
    _, applies = FORMS[form]
    return any(is_plain(leaf) and applies(leaf) for leaf in pytree.tree_leaves(tree))


def is_plain(leaf: Any) -> bool:
    """Whether a leaf is a tensor whose elements lie at strides."""
    if type(leaf) is not Tensor:
        return False
    return leaf.layout is torch.strided and not (leaf.is_quantized or leaf.is_nested)
