"""Functionalization: a PyTorch function and example arguments in, a graph without mutation out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


def functorch_functionalize(f: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """The graph of a function without in-place ops, except for writes to arguments.

    Sizes stay open. `turbine.aot.jittable` and `export` do as much by themselves.

    >>> import torch
    >>> from turbine.compat.functionalization import functorch_functionalize
    >>> graph = functorch_functionalize(lambda x: (x + 1).mul_(2), torch.ones(3))
    >>> [node.target for node in graph.graph.nodes if "mul" in str(node.target)]
    [<OpOverload(op='aten.mul', overload='Tensor')>]
    """
    functional = torch.func.functionalize(f)
    return make_fx(functional, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*args)
