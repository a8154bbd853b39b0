"""Views of tensors whose strides differ from those the model was traced with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def view(x: Tensor, size: list[int]) -> Tensor:
    """A rule may give a result other strides than the op it replaces; values have none in IR."""
    if x.is_contiguous():
        return NotImplemented
    return aten.view.default(x.contiguous(), size)


RULES: dict[Any, Callable[..., Any]] = {aten.view.default: view}
