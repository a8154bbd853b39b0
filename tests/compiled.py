"""Compare a function under torch.compile with the same function in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as torch_pytree

from tests.models import relative_error
from turbine.dynamo import records
from turbine.dynamo.records import GraphRecord

Make = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Outcome:
    """All effects of a call that a caller can see."""

    results: Any
    arguments: tuple[Any, ...]  # after the call
    gradients: list[Tensor | None]


def compiled(function: Any, **options: Any) -> Any:
    """The function under torch.compile with our backend, and nothing left over from before."""
    torch._dynamo.reset()
    return torch.compile(function, backend="turbine", **options)


def agrees(
    function: Any, make: Make, *, tolerance: float = 1e-6, ops: int = 1, **options: Any
) -> list[GraphRecord]:
    """Check everything a caller can see, and that at least `ops` ops were compiled.

    `make` builds the arguments, twice alike. A module's parameters count as arguments.
    """
    expected = outcome(function, make)
    with records.collect() as heard:
        found = outcome(function, make, compiled(function, **options))
    same(found, expected, tolerance)
    assert sum(p.ops.total() for g in heard for p in g.parts if p.compiled) >= ops
    return heard


def outcome(function: Any, make: Make, call: Any = None) -> Outcome:
    """Call on new arguments and, where results ask for it, go backward through them."""
    torch.manual_seed(0)
    args = make()
    weights = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    for weight in weights:
        weight.grad = None
    leaves = [leaf for tensor in (*tensors(args), *weights) for leaf in _leaves_behind(tensor)]
    results = (function if call is None else call)(*args)
    differentiable = [t for t in tensors(results) if t.requires_grad]
    torch.manual_seed(1)
    if differentiable:
        torch.autograd.backward(differentiable, [torch.rand_like(t) for t in differentiable])
    gradients = [leaf.grad for leaf in leaves]
    return Outcome(results, args, [None if g is None else g.clone() for g in gradients])


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in a nested value."""
    return [leaf for leaf in torch_pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def same(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Same nesting and, of each tensor, all a caller can ask for; values within a tolerance."""
    for ours, theirs in zip(_leaves(found), _leaves(expected), strict=True):
        assert type(ours) is type(theirs)
        if not isinstance(theirs, Tensor):
            assert ours == theirs
            continue
        assert facts(ours) == facts(theirs)
        # AOTAutograd may hand out a view as a tensor of its own; never the other way around.
        assert theirs._is_view() or not ours._is_view()
        ours, theirs = ours.detach().resolve_conj(), theirs.detach().resolve_conj()
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert relative_error(ours.nan_to_num(), theirs.nan_to_num()) <= tolerance


def facts(tensor: Tensor) -> dict[str, Any]:
    """What distinguishes tensors of equal values."""
    return {
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        # Those of axes of size one mean nothing, and torch's own shape functions differ in them.
        "strides": [k for k, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1],
        "offset": tensor.storage_offset(),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_inference": tensor.is_inference(),
    }


def _leaves_behind(tensor: Tensor) -> list[Tensor]:
    """The tensor itself, or the leaves it was computed from."""
    if tensor.grad_fn is None:
        return [tensor]
    found: list[Tensor] = []
    pending: list[Any] = [tensor.grad_fn]
    while pending:
        step = pending.pop()
        pending += [following for following, _ in step.next_functions if following is not None]
        if step.name() == "torch::autograd::AccumulateGrad":
            found.append(step.variable)
    return found


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Outcome):
        tree = (tree.results, tree.arguments, tree.gradients)
    leaves, spec = torch_pytree.tree_flatten(tree)
    return [str(spec), *leaves]
