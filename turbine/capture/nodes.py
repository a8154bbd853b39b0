"""Copy graphs, and add nodes to them with the metadata that the importer reads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import fx
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves


def emit(
    graph: fx.Graph,
    target: Callable[..., Any],
    *args: Any,
    beside: fx.Node | None = None,
    **kwargs: Any,
) -> fx.Node:
    """Add a call with its fake value, and with the source line of `beside`."""
    node = graph.call_function(target, args, kwargs)
    values = fx.map_arg(args, value_of)
    with _fake_mode(values):
        node.meta["val"] = target(*values, **kwargs)
    if beside is not None and beside.stack_trace is not None:
        node.meta["stack_trace"] = beside.stack_trace
    return node


def copy_graph(module: fx.GraphModule) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
    """A copy whose nodes have the same names, and the copy of each node."""
    copied = fx.GraphModule(module, copy.deepcopy(module.graph))
    twins = dict(zip(module.graph.nodes, copied.graph.nodes, strict=True))
    for node, twin in twins.items():
        twin.name = node.name
    return copied, twins


def source_of(node: fx.Node) -> dict[str, Any]:
    """The metadata of a node that says which code of the user it comes from."""
    return {key: node.meta[key] for key in _ABOUT_CODE if key in node.meta}


_ABOUT_CODE = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")


def _fake_mode(values: Any) -> AbstractContextManager[Any]:
    """The fake mode of the values: tensors that ops make of numbers have to be fake as well."""
    fakes = (value for value in tree_leaves(values) if isinstance(value, FakeTensor))
    return next((fake.fake_mode for fake in fakes), nullcontext())


def value_of(operand: Any) -> Any:
    """The value of a node at the example's sizes; anything else is itself."""
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand
