"""Fold tensors of one repeated value as PyTorch computes them, before the compiler folds them.

IREE 3.13 folds a constant 3.0 < 0 to true, 3.0 + -2 to 1.8e19, and 3 // -2 to 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten
_REPEATS = {aten.full.default, aten.scalar_tensor.default}


def fold_uniform(graph: fx.Graph) -> None:
    """Make a fill, in place, of every op on constants that gives one value in all places."""
    with _disable_current_modes():  # under torch.compile, tensors are fake otherwise
        known: dict[fx.Node, torch.Tensor] = {}
        for node in graph.nodes:
            value = _value(node, known)
            if value is not None:
                known[node] = value
                _fill(node, value)


def _fill(node: fx.Node, value: torch.Tensor) -> None:
    if node.target not in _REPEATS and value.dtype not in _UNSIGNED:
        like = node.meta["val"]
        node.target, node.args = aten.full.default, (list(like.shape), value.item())
        node.kwargs = {"dtype": value.dtype, "device": like.device}


def _value(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """What every element of the result is, if that is known."""
    if node.op != "call_function" or not _is_plain(node.meta.get("val")):
        return None
    if node.target in _REPEATS:
        number = node.args[-1]
        return _kept(number, node.meta["val"].dtype) if isinstance(number, (int, float)) else None
    inputs = node.all_input_nodes
    if not inputs or not all(argument in known for argument in inputs):
        return None
    if not isinstance(node.target, torch._ops.OpOverload) or not _is_elementwise(node.target):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    result: Any = known[inputs[0]] if node.target.is_view else node.target(*args, **kwargs)
    return _kept(result.item(), node.meta["val"].dtype)


def _is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return False
    return value.device.type == "cpu" and all(isinstance(size, int) for size in value.shape)


# The compiler refuses constants of these.
_UNSIGNED = {torch.uint8, torch.uint16, torch.uint32, torch.uint64}


def _is_elementwise(target: torch._ops.OpOverload) -> bool:
    return target.is_view or target in _UNTAGGED or torch.Tag.pointwise in target.tags


# Elementwise without saying so.
_UNTAGGED = {
    aten._to_copy.default,
    aten.clone.default,
    aten.div.Scalar_mode,
    aten.div.Tensor_mode,
    aten.floor_divide.default,
}


def _kept(number: float, dtype: torch.dtype) -> torch.Tensor | None:
    return torch.tensor(number, dtype=dtype) if math.isfinite(number) else None
