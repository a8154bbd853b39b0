"""Run a captured program in PyTorch, and compare its results with the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor
from torch.utils import _pytree as torch_pytree

from turbine.capture.effects import draws, is_ordered
from turbine.capture.program import Program

# Far above rounding errors, and far below the difference between two computations.
_TOLERANCE = 1e-2


def can_compare(program: Program) -> bool:
    """Whether a program can be compared: its weights have values, and it only computes and checks.

    Where an assertion fails, the comparison does.
    """
    nodes = [
        node
        for node in program.graph.graph.nodes
        if node.op == "call_function" and node.target is not torch.ops.aten._assert_async.msg
    ]
    tensors = [weight.tensor for weight in program.weights.values()]
    return (
        not program.stores
        and all(t.device.type == "cpu" and not isinstance(t, FakeTensor) for t in tensors)
        and not any(draws(node.target) or is_ordered(node) for node in nodes)
    )


def agrees(
    program: Program,
    model: torch.nn.Module,
    leaves: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> bool:
    """Whether both return the same for these arguments; False if the model raises."""
    try:
        with torch.no_grad():
            expected = torch_pytree.tree_leaves(model(*_copy(args), **_copy(kwargs)))
            found = _run(program, leaves)
    # A model may raise anything for a size it does not support.
    except Exception:
        return False
    tensors = [leaf for leaf in expected if isinstance(leaf, Tensor)]
    return len(found) == len(tensors) and all(map(_is_close, found, tensors))


def _copy(arguments: Any) -> Any:
    return torch_pytree.tree_map_only(Tensor, Tensor.clone, arguments)


def _run(program: Program, leaves: Sequence[Any]) -> list[Tensor]:
    """The tensors that the program returns."""
    kinds = [spec.kind for spec in program.signature.inputs]
    passed = [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind != "constant"]
    values = {**dict(zip(program.inputs, passed, strict=True)), **program.constants}
    values |= {place: weight.tensor for place, weight in program.weights.items()}
    places = [node.name for node in program.graph.graph.nodes if node.op == "placeholder"]
    interpreter = fx.Interpreter(program.graph, garbage_collect_values=False)
    interpreter.run(*[values.get(place) for place in places])
    returned = [o for o in program.signature.outputs if o.kind in ("tensor", "scalar")]
    pairs = zip(program.results, returned, strict=False)
    return [interpreter.env[node] for node, output in pairs if output.kind == "tensor"]


def _is_close(found: Tensor, expected: Tensor) -> bool:
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    if not expected.numel():
        return True
    if not (expected.is_floating_point() or expected.is_complex()):
        return bool((found != expected).float().mean() <= _TOLERANCE)
    size = expected.abs().nan_to_num(0, 0, 0).max().item()
    return torch.allclose(found, expected, _TOLERANCE, _TOLERANCE * size, equal_nan=True)
