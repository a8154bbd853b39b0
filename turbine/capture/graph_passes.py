"""Passes that simplify a captured graph in place; passes.py has their order."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves, tree_map

from turbine.capture.constants import fill
from turbine.capture.effects import draws, is_pointwise
from turbine.capture.nodes import emit
from turbine.capture.sizes import expression, hint, is_empty

aten = torch.ops.aten

# Assertions about sizes, dtypes and ranges; every call is checked against the signature instead.
_GUARDS = {
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}


def fix_sizes(graph_module: fx.GraphModule) -> None:
    """Replace size symbols that PyTorch specialized during the trace by their numbers."""
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        fixed = tree_map(_with_fixed_sizes, value)
        if all(new is old for new, old in zip(*map(tree_leaves, (fixed, value)), strict=True)):
            continue
        if isinstance(fixed, int):
            _replace_by_number(node, fixed)
        else:
            node.meta["val"] = fixed
            node.meta.pop("tensor_meta", None)  # it has the old sizes, and the importer prefers it


def _replace_by_number(node: fx.Node, number: int) -> None:
    """Replace a node by a number in every op; the signature keeps arguments and results."""
    for user in [user for user in node.users if user.op != "output"]:
        user.args, user.kwargs = map_aggregate(
            (user.args, user.kwargs), lambda operand: number if operand is node else operand
        )


def _with_fixed_sizes(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return _number(value)
    if not isinstance(value, FakeTensor) or value.is_sparse:
        return value
    shape, strides = ([*map(_number, numbers)] for numbers in (value.shape, value.stride()))
    if all(new is old for new, old in zip(shape, value.shape, strict=True)):
        return value
    return value.new_empty_strided(shape, strides)


def _number(size: int | torch.SymInt) -> int | torch.SymInt:
    known = expression(size)
    return int(known) if getattr(known, "is_Integer", False) else size


def fix_broadcasts(graph_module: fx.GraphModule) -> None:
    """Slice broadcast operands along axes whose dynamic size, such as (s0 + 1) // 3, has to be 1.

    The compiler assumes that dynamic sizes are equal.
    """
    graph = graph_module.graph
    for node in [node for node in graph.nodes if _broadcasts(node)]:
        for operand in node.all_input_nodes:
            with graph.inserting_before(node):
                sliced = _slice_ones(graph, operand, node)
            if sliced is not operand:
                node.replace_input_with(operand, sliced)


def _broadcasts(node: fx.Node) -> bool:
    has_shape = isinstance(node.meta.get("val"), torch.Tensor)
    return has_shape and (is_pointwise(node.target) or node.target is aten.expand.default)


def _slice_ones(graph: fx.Graph, operand: fx.Node, node: fx.Node) -> fx.Node:
    value, sliced = operand.meta.get("val"), operand
    if not isinstance(value, torch.Tensor):
        return operand
    for axis in range(-value.dim(), 0):
        size, stretched = value.shape[axis], node.meta["val"].shape[axis]
        is_same = isinstance(size, int) or expression(size) == expression(stretched)
        if not is_same and hint(size) == 1 and statically_known_true(size == 1):
            sliced = emit(graph, aten.slice.Tensor, sliced, axis, 0, 1, beside=node)
    return sliced


def drop_guards(graph_module: fx.GraphModule) -> None:
    """Erase assertion nodes."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and node.target in _GUARDS:
            graph_module.graph.erase_node(node)


def drop_whole_slices(graph_module: fx.GraphModule) -> None:
    """Replace `x[:]` by `x`, unless it is a result."""
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        start, end, step = (*node.args[2:], None, None, None)[:3]
        is_whole = start in (None, 0) and end in (None, sys.maxsize) and step in (None, 1)
        if is_whole and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])


def fill_empty(graph_module: fx.GraphModule) -> None:
    """Replace ops with empty results by fills: the compiler fails on some of them."""
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and _is_empty(value) and _is_pure(node):
            fill(node, 0)


def fill_reductions_of_nothing(graph_module: fx.GraphModule) -> None:
    """Replace reductions of an empty axis by fills: IREE 3.13 loses elements of their results."""
    for node in graph_module.graph.nodes:
        operands = [operand.meta.get("val") for operand in node.all_input_nodes]
        if node.target in _REDUCTIONS and all(map(_is_empty, operands)):
            fill(node, _REDUCTIONS[node.target])


_REDUCTIONS: dict[object, float | bool] = {
    aten.sum.default: 0,
    aten.sum.dim_IntList: 0,
    aten.prod.default: 1,
    aten.prod.dim_int: 1,
    aten.mean.default: math.nan,
    aten.mean.dim: math.nan,
    aten.any.default: False,
    aten.any.dim: False,
    aten.any.dims: False,
    aten.all.default: True,
    aten.all.dim: True,
    aten.all.dims: True,
    aten.mm.default: 0,
    aten.bmm.default: 0,
}


def convert_fill_values(graph_module: fx.GraphModule) -> None:
    """Convert numbers that fill tensors: the compiler takes the lowest bit as a bool.

    Outside of loops, it cannot round a float to a narrower dtype.
    """
    for node in graph_module.graph.nodes:
        place, value = _NUMBERS.get(node.target), node.meta.get("val")
        if place is None or not isinstance(value, torch.Tensor) or len(node.args) <= place:
            continue
        number = node.args[place]
        if value.dtype == torch.bool and isinstance(number, (int, float)):
            node.update_arg(place, bool(number))
        if value.dtype in _NARROW_FLOATS and isinstance(number, float):
            node.update_arg(place, torch.tensor(number, dtype=value.dtype).item())


_NARROW_FLOATS = {torch.float16, torch.bfloat16, torch.float32}


# The position of the fill value among an op's arguments.
_NUMBERS = {
    aten.scalar_tensor.default: 0,
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.fill.Scalar: 1,
    aten.masked_fill.Scalar: 2,
    aten.constant_pad_nd.default: 2,
    aten.scatter.value: 3,
}


def _is_empty(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return is_empty(value)


# Fills already, or ops whose indices PyTorch checks even if the result is empty.
_KEPT = {aten.full.default, aten.index_select.default, aten.embedding.default}


def _is_pure(node: fx.Node) -> bool:
    """Whether an op has no effect but its result."""
    target = node.target
    if target is operator.getitem:
        return _is_pure(node.all_input_nodes[0])
    if not isinstance(target, torch._ops.OpOverload) or target in _KEPT:
        return False
    return not (draws(target) or target._schema.is_mutable or node.is_impure())
