"""Say of a node, without compiling anything, why the compiler could not take it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turbine import dtypes, errors
from turbine.capture.partition import is_random
from turbine.mlir import torch_ops

aten = torch.ops.aten

# Arithmetic on sizes that means the same there. The others (powers, remainders) are done outside.
_SIZE_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.floordiv}
_SIZES = {aten.sym_size.int, aten.sym_numel.default}

# What compiles and gives other numbers than PyTorch, and what crashes while it runs.
WRONG: dict[Any, str] = {
    aten.sort.default: "a long row takes time by its square, and nan has no place",
    aten.topk.default: "a long row takes time by its square, and nan has no place",
    aten.kthvalue.default: "nan has no place",
}

# Named in the dialect, and refused all the same.
_REFUSED = {aten.as_strided.default, aten.as_strided_scatter.default}
DRAWS = "draws random numbers from PyTorch's generator"


def _is_negative_power(node: fx.Node) -> bool:
    exponent = node.args[1]
    return not isinstance(exponent, (int, float)) or exponent < 0


def _compares_with_itself(node: fx.Node) -> bool:
    return node.args[0] is node.args[1] and _reads(node, _is_float)


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def _is_unsigned(dtype: torch.dtype) -> bool:
    return dtype in _UNSIGNED


_UNSIGNED = {torch.uint8, torch.uint16, torch.uint32, torch.uint64}


def _reads_unsigned(node: fx.Node) -> bool:
    return _reads(node, _is_unsigned)


def _divides_wrongly(node: fx.Node) -> bool:
    return _reads_unsigned(node) or _reads(node, _is_float)


def _reads(node: fx.Node, kind: Callable[[torch.dtype], bool]) -> bool:
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and kind(value.dtype) for value in values)


# The same for ops that are right otherwise: when, and why.
_SIGNED_ONLY = (_reads_unsigned, "unsigned numbers are taken for signed ones")
_WRONG_WHEN: dict[Any, tuple[Callable[[fx.Node], bool], str]] = {
    aten.pow.Tensor_Scalar: (_is_negative_power, "zero to a negative power has another sign"),
    aten.eq.Tensor: (_compares_with_itself, "nan equals itself"),
    aten.div.Tensor_mode: (_divides_wrongly, "of infinities and unsigned numbers"),
    aten.div.Scalar_mode: (_divides_wrongly, "of infinities and unsigned numbers"),
    aten.floor_divide.default: (_divides_wrongly, "of infinities and unsigned numbers"),
    aten.remainder.Tensor: _SIGNED_ONLY,
    aten.remainder.Scalar: _SIGNED_ONLY,
    aten.fmod.Tensor: _SIGNED_ONLY,
    aten.fmod.Scalar: _SIGNED_ONLY,
    aten.abs.default: _SIGNED_ONLY,
}


def obstacle(node: fx.Node) -> str | None:
    """Why the node has to run in PyTorch; None if the compiler may be asked."""
    if node.target is operator.getitem:
        return None
    return _op_obstacle(node) or next(_value_obstacles(node), None)


def _op_obstacle(node: fx.Node) -> str | None:
    target = node.target
    if target in _SIZE_ARITHMETIC or target in _SIZES:
        return None
    if not isinstance(target, torch._ops.OpOverload):
        return "not an operator of the compiler's"
    if target in WRONG:
        return f"compiled code gives other numbers: {WRONG[target]}"
    if target in _WRONG_WHEN:
        applies, reason = _WRONG_WHEN[target]
        if applies(node):
            return f"compiled code gives other numbers: {reason}"
    if is_random(node):
        return DRAWS
    if target._schema.is_mutable:
        return "changes its argument"
    if torch.Tag.dynamic_output_shape in target.tags and _has_new_sizes(node):
        return "the size of its result depends on values"
    if target in _REFUSED or not torch_ops.is_defined(target.name()):
        return "the compiler has no definition of it"
    return None


def _has_new_sizes(node: fx.Node) -> bool:
    return any(free_unbacked_symbols(v) for v in _listed(node.meta.get("val")))


def _value_obstacles(node: fx.Node) -> Iterator[str]:
    for value in _values(node):
        if isinstance(value, torch.Tensor):
            problem = tensor_obstacle(value)
            if problem is not None:
                yield problem
        elif isinstance(value, (torch.SymFloat, torch.SymBool)):
            yield f"a {type(value).__name__} is computed at run time"


def _values(node: fx.Node) -> Iterator[Any]:
    """The values a node reads and gives."""
    for one in (node, *node.all_input_nodes):
        yield from _listed(one.meta.get("val"))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def tensor_obstacle(value: torch.Tensor) -> str | None:
    """Why a tensor cannot be handed to the compiler's code."""
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
