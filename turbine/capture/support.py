"""Decide, without compiling, whether a node can be compiled, and why not."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turbine import dtypes, errors
from turbine.capture.control_flow import bodies, is_control_flow
from turbine.capture.declared_ops import EMITTED, SPEAKING
from turbine.capture.effects import draws
from turbine.capture.overlap import keeps_overlap
from turbine.mlir import torch_ops

aten = torch.ops.aten

# Arithmetic on sizes that compiled code does as Python does. Other ops (pow, mod) run in PyTorch.
_COMPARISONS = {operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne}
_SIZE_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.floordiv, *_COMPARISONS}
_SIZES = {aten.sym_size.int, aten.sym_numel.default}

# Ops whose compiled code is slow, crashes, or differs from PyTorch.
WRONG: dict[Any, str] = {
    aten.sort.default: "wrong for nan",
    aten.topk.default: "wrong for nan",
    aten.kthvalue.default: "wrong for nan",
}

# In the dialect, but the compiler rejects them.
_REFUSED = {aten.as_strided.default, aten.as_strided_scatter.default}
# In PyTorch, their results have the strides of the first operand.
_KEEPING_OVERLAP = {aten.select_scatter.default, aten.slice_scatter.default}
DRAWS = "draws random numbers from PyTorch's generator"


# Without uint8, which `small_integers` widens.
_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_SIGNED_ONLY = {
    aten.abs.default,
    aten.div.Scalar_mode,
    aten.div.Tensor,
    aten.div.Tensor_mode,
    aten.floor_divide.default,
    aten.fmod.Scalar,
    aten.fmod.Tensor,
    aten.remainder.Scalar,
    aten.remainder.Tensor,
    aten.sum.default,
    aten.sum.dim_IntList,
}


def _reads_unsigned(node: fx.Node) -> bool:
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.dtype in _UNSIGNED for value in values)


def obstacle(node: fx.Node) -> str | None:
    """Why the node has to run in PyTorch; None if the compiler may support it."""
    if node.target is operator.getitem:
        return None
    return _op_obstacle(node) or next(_value_obstacles(node), None)


def _op_obstacle(node: fx.Node) -> str | None:
    target = node.target
    if target in _SIZE_ARITHMETIC or target in _SIZES:
        return None
    if is_control_flow(node):
        return next(_body_obstacles(node), None)
    if not isinstance(target, torch._ops.OpOverload):
        return "not an op of the compiler"
    if target in WRONG:
        return f"compiled code gives other numbers: {WRONG[target]}"
    if target in _SIGNED_ONLY and _reads_unsigned(node):
        return "compiled code gives other numbers: it takes unsigned numbers for signed ones"
    if draws(target):
        return DRAWS
    if target.name() in SPEAKING:
        return "it prints, which only Python can do"
    if target._schema.is_mutable:
        return "changes its argument"
    if node.is_impure():
        return "acts outside the program"
    if torch.Tag.dynamic_output_shape in target.tags and _has_new_sizes(node):
        return "the size of its result depends on values"
    is_known = torch_ops.is_defined(target.name()) or target.name() in EMITTED
    if target in _REFUSED or not is_known:
        return "the compiler has no definition of it"
    if target in _KEEPING_OVERLAP and _writes_to_overlap(node):
        return "writes to a view whose elements share memory"
    return None


def _writes_to_overlap(node: fx.Node) -> bool:
    value = node.all_input_nodes[0].meta.get("val")
    return isinstance(value, torch.Tensor) and keeps_overlap(value)


def _body_obstacles(node: fx.Node) -> Iterator[str]:
    """Why ops that control flow runs have to run in PyTorch."""
    for body in bodies(node):
        for one in body.graph.nodes:
            reason = obstacle(one) if one.op == "call_function" else None
            if reason is not None:
                yield f"in its body, {one.target}: {reason}"


def _has_new_sizes(node: fx.Node) -> bool:
    return any(free_unbacked_symbols(v) for v in _as_sequence(node.meta.get("val")))


def _value_obstacles(node: fx.Node) -> Iterator[str]:
    for one in (node, *node.all_input_nodes):
        for value in _as_sequence(one.meta.get("val")):
            if isinstance(value, torch.Tensor):
                problem = tensor_obstacle(value)
                if problem is not None:
                    yield problem
            # Comparisons of sizes are computed beside the op that reads them.
            elif isinstance(value, _COMPUTED) and one.target not in _COMPARISONS:
                yield f"a {type(value).__name__} is computed at run time"


_COMPUTED = (torch.SymFloat, torch.SymBool)


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def tensor_obstacle(value: torch.Tensor) -> str | None:
    """Why a tensor cannot be passed to compiled code."""
    if value.device.type != "cpu":
        return f"a tensor is on device {value.device}"
    if value.layout is not torch.strided or value.is_nested:
        return f"a tensor has layout {value.layout}"
    if value.is_quantized:
        return "a tensor is quantized"
    try:
        dtypes.of_torch(value.dtype)
    except errors.UnsupportedDtype:
        return f"a tensor has dtype {value.dtype}"
    return None
