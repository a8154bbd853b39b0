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
    """Declare an op by its schema; the decorated function is its implementation.

    The function is written with PyTorch ops. It is compiled, and gradients are derived from it. For
    an op with an emission (`register_emission`, `register_template`), it is the shape rule, and
    runs on fake tensors.

    Args:
        text: the schema, "namespace::name(arguments) -> results".
        static: axes whose sizes code is specialized for, as in `{"x": [1], "weight": True}`, or a
            function from a call's arguments to such a dict; other sizes are dynamic.
        leave: kernels, "Meta" or "CPU", that the caller registers with torch.library.

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
