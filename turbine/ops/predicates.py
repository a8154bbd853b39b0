"""Predicates of a call of an op, and of its tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as torch_pytree

_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transform_level = torch._C._functorch.maybe_current_level


def is_intercepted() -> bool:
    """Whether a mode intercepts calls of ops."""
    return bool(_function_modes() or _dispatch_modes())


def is_transformed() -> bool:
    """Whether a call may be in a transform of torch.func or in forward-mode AD."""
    level: int = forward_ad._current_level
    return level >= 0 or _transform_level() is not None


def is_intercepted_or_transformed() -> bool:
    """Whether a call is intercepted or transformed; both are inlined, since every call checks."""
    if _function_modes() or _dispatch_modes() or _transform_level() is not None:
        return True
    return bool(forward_ad._current_level >= 0)


def any_requires_grad(values: Any) -> bool:
    tensors = filter(is_tensor, torch_pytree.tree_leaves(values))
    return any(tensor.requires_grad for tensor in tensors)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
