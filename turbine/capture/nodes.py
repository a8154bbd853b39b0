"""New nodes of a graph, with what the importer asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


def emit(
    graph: fx.Graph,
    target: Callable[..., Any],
    *args: Any,
    beside: fx.Node | None = None,
    **kwargs: Any,
) -> fx.Node:
    """A call with its value, and with the source line of the node `beside` it."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*map(value_of, args), **kwargs)
    if beside is not None and beside.stack_trace is not None:
        node.meta["stack_trace"] = beside.stack_trace
    return node


def value_of(operand: Any) -> Any:
    """The value of a node at the example's sizes; anything else is itself."""
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand
