"""Declare ops that return their last argument, and mark it in IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from turbine.capture.declared_ops import EMITTED, IN_PROCESS, KEEP_OPERANDS
from turbine.ops import ir_builder, schema


def declare(
    text: str,
    emit: ir_builder.Emit,
    *,
    check: Callable[..., None] | None = None,
    only_exported: bool = False,
) -> CustomOpDef:
    """Declare an op that copies its last argument in PyTorch, and calls `emit` in compiled code.

    With `only_exported`, it is a copy under torch.compile too. `check` is called with the op's name
    and arguments, and raises if they are invalid.
    """
    parsed = schema.parse(text)

    def copy_last(*args: Any) -> Tensor:
        if check is not None:
            check(parsed.qualified, *args)
        tensor: Tensor = args[-1]
        return tensor.clone(memory_format=torch.contiguous_format)

    signature = parsed.text.removeprefix(parsed.name)
    op = torch.library.custom_op(parsed.qualified, copy_last, mutates_args=(), schema=signature)
    op.register_fake(copy_last)
    op.register_autograd(lambda ctx, grad: (*[None] * (len(parsed.arguments) - 1), grad))
    op.register_vmap(lambda info, in_dims, *args: (op(*args), in_dims[-1]))
    EMITTED[parsed.qualified] = ir_builder.rule(parsed, emit)
    KEEP_OPERANDS.add(parsed.qualified)
    if only_exported:
        IN_PROCESS[op._opoverload] = copy_last
    return op
