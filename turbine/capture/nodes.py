"""Copy graphs, and add nodes to them with the metadata that the importer reads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from turbine.capture.control_flow import body_at


def emit(
    graph: fx.Graph,
    target: Callable[..., Any],
    *args: Any,
    beside: fx.Node | None = None,
    **kwargs: Any,
) -> fx.Node:
    """Add a call with its fake value, and with the source line and module of `beside`."""
    node = graph.call_function(target, args, kwargs)
    values = fx.map_arg(args, value_of)
    # Without the dispatcher, composite ops take dynamic sizes for static ones.
    with _fake_mode(values), enable_python_dispatcher():
        node.meta["val"] = target(*values, **kwargs)
    if beside is not None:
        node.meta |= {key: one for key, one in source_of(beside).items() if key in _PLACES}
    return node


def copy_graph(module: fx.GraphModule) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
    """A copy whose nodes have the same names, and the copy of each node; bodies are copied too."""
    copied = fx.GraphModule(module, copy.deepcopy(module.graph))
    for place in copied.graph.find_nodes(op="get_attr"):
        body = body_at(place)
        if body is not None:
            copied.set_submodule(str(place.target), copy_graph(body)[0])
    twins = dict(zip(module.graph.nodes, copied.graph.nodes, strict=True))
    for node, twin in twins.items():
        twin.name = node.name
    return copied, twins


def inline(
    node: fx.Node,
    function: Callable[..., Any],
    operands: Sequence[fx.Node],
    table: Mapping[Any, Callable[..., Any]],
) -> Any:
    """Add the ops of a function of operands before a node; returns its results."""
    values = [value_of(operand) for operand in operands]
    with _fake_mode([value_of(node), values]), enable_python_dispatcher():
        traced = make_fx(function, decomposition_table=table)(*values)
    places = traced.graph.find_nodes(op="placeholder")
    for one in traced.graph.nodes:
        one.meta |= source_of(node)
    with node.graph.inserting_before(node):
        return node.graph.graph_copy(traced.graph, dict(zip(places, operands, strict=True)))


def put_in_place(node: fx.Node, results: Any) -> None:
    """Replace a node by its result, or by the results that its `getitem` nodes take."""
    if not isinstance(results, fx.Node):
        for user in list(node.users):
            put_in_place(user, results[user.args[1]])
        node.graph.erase_node(node)
        return
    is_new, name = results not in node.all_input_nodes, node.name
    node.replace_all_uses_with(results)
    node.graph.erase_node(node)
    if is_new:
        results.name = name  # the signature refers to results by name


def source_of(node: fx.Node) -> dict[str, Any]:
    """The metadata of a node that says which code of the user it comes from."""
    return {key: node.meta[key] for key in _ABOUT_CODE if key in node.meta}


# The line and the module; and which function of PyTorch was called.
_PLACES = ("stack_trace", "nn_module_stack")
_ABOUT_CODE = (*_PLACES, "source_fn_stack", "torch_fn")


def _fake_mode(values: Any) -> AbstractContextManager[Any]:
    """The fake mode of the values: tensors that ops make of numbers have to be fake as well."""
    fakes = (value for value in tree_leaves(values) if isinstance(value, FakeTensor))
    return next((fake.fake_mode for fake in fakes), nullcontext())


def value_of(operand: Any) -> Any:
    """The value of a node at the example's sizes; anything else is itself."""
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand
