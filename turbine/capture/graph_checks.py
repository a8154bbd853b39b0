"""Reject graphs that cannot be compiled, with the user's line of the offending node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from turbine import dtypes, errors
from turbine.capture.argument_checks import storage_fault
from turbine.capture.overlap import has_overlap

aten = torch.ops.aten

# PyTorch traces these with operands of mixed dtypes, but raises when they run.
_ONE_DTYPE = {
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
}


def check_graph(graph: fx.Graph) -> None:
    """Raise for the first node with an unsupported layout or dtype."""
    check_layouts(graph)
    for node in graph.nodes:
        for value in _tensors(node.meta.get("val")):
            _check_dtype(node, value)
        if node.target in _ONE_DTYPE:
            _check_operands(node)


def check_layouts(graph: fx.Graph) -> None:
    """Raise for the first node with a sparse or nested tensor."""
    for node in graph.nodes:
        for value in _tensors(node.meta.get("val")):
            fault = storage_fault(value)
            if fault is not None:
                fact, hint = fault
                where = errors.line_of_trace(node.stack_trace)
                raise errors.UnsupportedOp(f"{_describe(node)} {fact}", where=where, hint=hint)


def check_strides(graph: fx.Graph) -> None:
    """Raise for `as_strided` of a tensor that is not contiguous: compiled code has other strides.

    The graph is one that PyTorch traced, whose tensors have the strides of eager PyTorch.
    """
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        (source,) = node.all_input_nodes[:1]
        if not source.meta["val"].is_contiguous():
            raise errors.UnsupportedOp(
                "as_strided of a tensor that is not contiguous",
                where=errors.line_of_trace(node.stack_trace),
                hint="write x.contiguous().as_strided(...), or views such as x.unfold",
            )


def check_overlap(graph: fx.Graph) -> None:
    """Raise for a write to a strided view with elements that share memory.

    PyTorch's functionalization turns it into a write of the whole view, old elements included.
    """
    for node in graph.find_nodes(op="call_function", target=aten.as_strided_scatter.default):
        shape, strides = (
            [n.meta["val"] if isinstance(n, fx.Node) else n for n in sizes]
            for sizes in node.args[2:4]
        )
        if has_overlap(shape, strides):
            raise errors.UnsupportedOp(
                f"a write to as_strided({shape}, {strides}), whose elements share memory",
                where=errors.line_of_trace(node.stack_trace),
                hint="write to the tensor itself, or to views whose elements are apart",
            )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return (one for one in values if isinstance(one, torch.Tensor))


def _check_dtype(node: fx.Node, value: torch.Tensor) -> None:
    try:
        dtypes.of_torch(value.dtype)
    except errors.UnsupportedDtype as error:
        raise errors.UnsupportedDtype(
            f"{_describe(node)}: {error.fact}",
            where=errors.line_of_trace(node.stack_trace),
            hint="convert it to one of these, as in x.to(torch.float32)",
        ) from error


def _check_operands(node: fx.Node) -> None:
    operands = [t for source in node.all_input_nodes for t in _tensors(source.meta.get("val"))]
    found = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in operands)
    if len(found) > 1:
        raise errors.ExportError(
            f"{node.target} has operands of several dtypes: {', '.join(found)}",
            where=errors.line_of_trace(node.stack_trace),
            hint="give the model and its arguments one dtype, as in model.to(x.dtype)",
        )


def _describe(node: fx.Node) -> str:
    is_given = node.op == "placeholder"
    return f"argument or weight {node.name}" if is_given else f"the result of {node.target}"
