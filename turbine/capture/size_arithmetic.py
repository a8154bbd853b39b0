"""Rewrite arithmetic on sizes to ops that the compiler has."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from turbine.capture.nodes import emit

aten, prim = torch.ops.aten, torch.ops.prim

# Functions of sizes that the importer does not know -> ops of the dialect.
_OPS: dict[Any, Any] = {
    torch.sym_float: aten.Float.Scalar,
    torch.sym_min: prim.min.int,
    torch.sym_max: prim.max.int,
}


def rewrite_size_arithmetic(graph: fx.Graph) -> None:
    """Use the compiler's ops on sizes, fold constants, and swap number - tensor to rsub."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is math.trunc:
            _scale(graph, node)
        if node.target in _OPS:
            node.target = _OPS[node.target]
        if node.target is operator.mod:
            _expand_remainder(graph, node)
        if node.target in _ON_TENSORS:
            _compute_on_tensor(graph, node)
        if type(node.meta.get("val")) is int:
            _replace(node, node.meta["val"])
            graph.erase_node(node)
        if node.target is aten.sub.Tensor and not _is_tensor(node.args[0]):
            node.target, node.args = aten.rsub.Scalar, node.args[::-1]
    graph.eliminate_dead_code()


def _scale(graph: fx.Graph, node: fx.Node) -> None:
    """Rewrite trunc(float(size) * factor), as in F.interpolate, to integer arithmetic.

    The compiler converts floats to integers only in tensors. For a factor with a small denominator
    both computations are exact.
    """
    product: Any = node.args[0]
    is_product = product.target is operator.mul and product.args[0].target is aten.Float.Scalar
    if not is_product or not isinstance(product.args[1], float):
        return
    above, below = product.args[1].as_integer_ratio()
    if above < 0 or above > _EXACT or below > _EXACT:
        return
    size = product.args[0].args[0]
    with graph.inserting_before(node):
        scaled = emit(graph, operator.mul, size, above)
    node.target, node.args = operator.floordiv, (scaled, below)


_EXACT = 2**20


def _compute_on_tensor(graph: fx.Graph, node: fx.Node) -> None:
    """Compute a function of floats on a tensor of rank 0, and read its element."""
    number, *others = node.args
    with graph.inserting_before(node):
        wide = _emit_scalar(graph, aten.full.default, [], number, dtype=torch.float64)
        result = _emit_scalar(graph, _ON_TENSORS[node.target], wide, *others)
        if isinstance(node.meta["val"], torch.SymInt):
            result = _emit_scalar(graph, aten._to_copy.default, result, dtype=torch.int64)
    node.target, node.args = aten._local_scalar_dense.default, (result,)


def _emit_scalar(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = torch.empty((), dtype=kwargs.get("dtype", torch.float64), device="meta")
    node.meta["tensor_meta"] = _extract_tensor_metadata(node.meta["val"])
    return node


# Functions of floats that the compiler has for tensors only.
_ON_TENSORS: dict[Any, Any] = {
    math.trunc: aten.trunc.default,
    math.floor: aten.floor.default,
    math.ceil: aten.ceil.default,
    operator.pow: aten.pow.Tensor_Scalar,
}


def _expand_remainder(graph: fx.Graph, node: fx.Node) -> None:
    """Rewrite a % b to a - a // b * b: the compiler's remainder has the sign of a."""
    a, b = node.args
    with graph.inserting_before(node):
        product = emit(graph, operator.mul, emit(graph, operator.floordiv, a, b), b)
    node.target, node.args = operator.sub, (a, product)


def _replace(node: fx.Node, number: int) -> None:
    """Replace all uses of a node by a number."""

    def change(argument: Any) -> Any:
        return number if argument is node else argument

    for user in list(node.users):
        user.args = fx.map_arg(user.args, change)
        user.kwargs = fx.map_arg(user.kwargs, change)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), torch.Tensor)
