"""Gradients and vmap of custom ops: registered, or derived from the op's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch._functorch import autograd_function
from torch._library.autograd import Info, supports_tensorlist
from torch.autograd.function import _SingleLevelFunction
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.ops.predicates import is_intercepted
from turbine.ops.schema import Schema

Function = Callable[..., Any]


def derive_backward(schema: Schema, function: Function) -> Info:
    """A backward that recomputes and differentiates the op's function."""

    def setup_context(
        ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None
    ) -> None:
        args = schema.filled(inputs, keyword_only_inputs or {})
        leaves, ctx.tree = torch_pytree.tree_flatten(args)
        ctx.save_for_backward(*[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
        ctx.rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        ctx.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = dict(zip(ctx.places, ctx.saved_tensors, strict=True))
        wanted = [place for place, tensor in saved.items() if _is_differentiable(tensor)]
        given = iter(torch_pytree.tree_leaves(list(grads)))
        cotangents: list[Any] = []

        def of_tensors(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            own = saved | dict(zip(wanted, tensors, strict=True))
            leaves = [own.get(place, leaf) for place, leaf in enumerate(ctx.rest)]
            results = function(*torch_pytree.tree_unflatten(leaves, ctx.tree))
            pairs = list(zip(torch_pytree.tree_leaves(results), given, strict=True))
            cotangents.extend(grad for result, grad in pairs if _is_differentiable(result))
            return tuple(result for result, _ in pairs if _is_differentiable(result))

        outputs, vjp, *_ = torch.func.vjp(of_tensors, *[saved[place] for place in wanted])
        filled = [
            torch.zeros_like(output) if grad is None else grad
            for output, grad in zip(outputs, cotangents, strict=True)
        ]
        by_place = dict(zip(wanted, vjp(tuple(filled)), strict=True))
        gradients = torch_pytree.tree_unflatten(
            [by_place.get(place) for place in range(len(ctx.rest))], ctx.tree
        )
        pairs = zip(gradients, schema.arguments, strict=True)
        # Autograd accepts lists of gradients only for lists of tensors.
        return tuple(
            gradient if argument.kind.startswith("Tensor") else None
            for gradient, argument in pairs
            if not argument.keyword_only
        )

    return Info(backward, setup_context)


@dataclass(frozen=True)
class _Call:
    """The keyset and keywords of a call, as one argument that autograd ignores."""

    keyset: Any
    keywords: dict[str, Any]


def under_transforms(op: Any, schema: Schema, info: Info) -> Function:
    """A registered backward for calls in torch.func's transforms, which reject PyTorch's kernel.

    It is an autograd function of one transform level; the next level handles the call inside.
    """

    def forward(ctx: Any, *given: Any) -> Any:
        *args, call = given
        keyset, keywords = call.keyset, call.keywords
        with torch._C._AutoDispatchBelowAutograd():
            results = op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **keywords)
        if info._setup_context_fn is not None:
            inputs, named = schema.split(schema.filled(args, keywords))
            more = {"keyword_only_inputs": named} if named else {}
            info._setup_context_fn(ctx=ctx, inputs=inputs, output=results, **more)
        return results

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        assert info._backward_fn is not None
        given = info._backward_fn(ctx, *grads)
        return (*given, None) if isinstance(given, tuple) else (given, None)

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    single: Any = type(f"{schema.name}_under_transforms", (_SingleLevelFunction,), body)
    if any(a.is_list for a in schema.arguments) or any(r.is_list for r in schema.results):
        single = supports_tensorlist(single)

    def call(keyset: Any, *args: Any, **keywords: Any) -> Any:
        with autograd_function.enable_single_level_autograd_function():  # type: ignore[attr-defined]
            return single.apply(*args, _Call(keyset, keywords))

    return call


def _is_differentiable(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and (value.dtype.is_floating_point or value.dtype.is_complex)


def loop(op: Function) -> Function:
    """A vmap rule that calls the op once for each element of the batch."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **keywords: Any) -> tuple[Any, Any]:
        def element(index: int) -> Any:
            picked = [_select_batch(a, d, index) for a, d in zip(args, in_dims, strict=True)]
            return op(*picked, **keywords)

        # For an empty batch, the shape comes from a call with one element.
        results = [element(index) for index in range(info.batch_size or 1)]
        leaves = [torch_pytree.tree_flatten(result)[0] for result in results]
        tree = torch_pytree.tree_structure(results[0])
        stacked = [
            torch.stack(same)[: info.batch_size] if isinstance(same[0], torch.Tensor) else same[0]
            for same in zip(*leaves, strict=True)
        ]
        dims = [0 if isinstance(leaf, torch.Tensor) else None for leaf in stacked]
        return (
            torch_pytree.tree_unflatten(stacked, tree),
            torch_pytree.tree_unflatten(dims, tree),
        )

    return rule


def _select_batch(argument: Any, dim: Any, index: int) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_select_batch(one, d, index) for one, d in zip(argument, dim, strict=True)]
    if dim is None:
        return argument
    if argument.shape[dim] == 0:
        return argument.new_zeros([*argument.shape[:dim], *argument.shape[dim + 1 :]])
    return argument.select(dim, index)


def refuse(error: errors.TurbineError) -> NoReturn:
    """Raise the error for a missing gradient.

    PyTorch traces backward passes in anomaly mode, which would print the stack of the forward call
    first. The mode is turned off here, and restored by the code that turned it on.
    """
    if is_intercepted():
        torch.set_anomaly_enabled(False)
    raise error
