"""What is to be asked about a call of an op, and about the tensors it passes."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as torch_pytree


def is_watched() -> bool:
    """Whether something is to see every call of an op."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def is_transformed() -> bool:
    """Whether a call may be part of one of torch.func's transforms, or of forward-mode AD."""
    level: int = forward_ad._current_level
    return level >= 0 or torch._C._functorch.maybe_current_level() is not None


def any_requires_grad(values: Any) -> bool:
    tensors = filter(is_tensor, torch_pytree.tree_leaves(values))
    return any(tensor.requires_grad for tensor in tensors)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
