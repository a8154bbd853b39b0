"""Call PyTorch's ops with less overhead, in graphs of static shapes.

On GPUs, PyTorch's time is often that of its calls. A view by the dispatcher costs as much as an op
that computes, so views of views become one call below it. That is only right for a base with the
strides of the graph, which each call checks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch._C._dynamo.guards import (  # type: ignore[attr-defined]
    _empty_strided_cuda,
    _reinterpret_tensor,
)
from torch.nn import functional as F

from turbine.library.fused import base_of

aten = torch.ops.aten
# PyTorch's own functions, which parse arguments faster than ops.
_FUNCTIONS = {
    aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.convolution.default: torch.convolution,
    aten.embedding.default: torch.embedding,
    aten.mm.default: torch.mm,
}


def use_quick_ops(module: fx.GraphModule) -> None:
    """Replace ops and views of a graph by calls that take less time."""
    graph = module.graph
    bases = {node: base_of(node) for node in graph.nodes if _is_plain(node)}
    for node in graph.nodes:
        _call_linear(node)
        node.target = _FUNCTIONS.get(node.target, node.target)
    for node, base in bases.items():
        is_result = any(user.op == "output" for user in node.users)
        if base is not node and base in bases and not is_result:
            node.replace_all_uses_with(_view(node, base))
    graph.eliminate_dead_code()
    module.recompile()


def _view(node: fx.Node, base: fx.Node) -> fx.Node:
    """A call in place of a view, or the base, if it is all of it as it is."""
    value, whole = node.meta["val"], base.meta["val"]
    offset = value.storage_offset() - whole.storage_offset()
    before = tuple(whole.shape), tuple(whole.stride()), 0
    after = tuple(value.shape), tuple(value.stride()), offset
    if before == after:
        return base
    with node.graph.inserting_before(node):
        view = node.graph.call_function(view_of, (base, before[1], *after))
    view.meta = dict(node.meta)
    return view


def _call_linear(node: fx.Node) -> None:
    """Make a product with a transposed weight one call, as in eager mode."""
    if node.target not in _PRODUCTS or node.kwargs:
        return
    *bias, rows, columns = node.all_input_nodes
    weight = base_of(columns)
    if len(node.args) != len(bias) + 2 or not (_is_plain(columns) and _is_plain(weight)):
        return
    value, whole = columns.meta["val"], weight.meta["val"]
    is_transposed = whole.dim() == 2 and whole.is_contiguous() and value.shape == whole.shape[::-1]
    is_bias = all(one.meta["val"].dim() == 1 for one in bias)
    if is_transposed and value.stride() == whole.stride()[::-1] and is_bias and rows is not columns:
        node.target = F.linear
        node.args = (rows, weight, *bias)


_PRODUCTS = {aten.mm.default, aten.addmm.default}


def _is_plain(node: fx.Node) -> bool:
    """Whether a node is a strided tensor of static shape."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    return all(type(size) is int for size in sizes) and not (value.is_conj() or value.is_neg())


def view_of(
    base: Tensor,
    expected: tuple[int, ...],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> Tensor:
    """A view of a tensor that has the expected strides; a copy of it has, otherwise."""
    if base.stride() != expected:
        base = copy_strided(base, expected)
    view: Tensor = _reinterpret_tensor(base, shape, strides, offset)
    return view


def copy_strided(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """A copy with certain strides."""
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def empty_on(
    device: torch.device, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """A new tensor on a GPU."""
    if torch._C._cuda_getDevice() != device.index:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)
    made: Tensor = _empty_strided_cuda(shape, strides, dtype)
    return made
