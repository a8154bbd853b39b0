"""Declare an op: a schema and a function in, a PyTorch op that is compiled out."""

from __future__ import annotations

from collections.abc import Callable, Collection

from turbine.ops import schema
from turbine.ops.declared_op import DeclaredOp, Function
from turbine.ops.pure_op import PureOp
from turbine.ops.specialization import Static
from turbine.ops.writing_op import WritingOp


def custom_op(
    text: str, *, static: Static | None = None, leave: Collection[str] = ()
) -> Callable[[Function], DeclaredOp]:
    """Declare an op by its schema; the function below it says what it means.

    Written with PyTorch's ops, the function is compiled, and gradients are derived from it. Where
    the op has an emission of its own (`register_emission`, `register_template`), the function is
    the shape rule: it is run on tensors without data. `static` names axes whose sizes are part of
    the code, `{"x": [1], "weight": True}`, or is called with a call's arguments to say so; code
    serves any size of the others. `leave` names kernels that the caller registers with
    torch.library, "Meta" and "CPU".

    >>> import torch, turbine.ops
    >>> @turbine.ops.custom_op("docs::scaled_add(Tensor x, Tensor y, float alpha=1.0) -> Tensor")
    ... def scaled_add(x, y, alpha):
    ...     return x + alpha * y
    >>> torch.ops.docs.scaled_add(torch.ones(2), torch.ones(2), alpha=2)
    tensor([3., 3.])
    >>> scaled_add.remove()
    """
    parsed = schema.parse(text)

    def declare(function: Function) -> DeclaredOp:
        kind = WritingOp if parsed.written else PureOp
        return kind(parsed, function, static or {}, leave)

    return declare
