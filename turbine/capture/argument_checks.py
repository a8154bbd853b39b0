"""Reject sparse and nested tensors among the arguments and weights of a model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as torch_pytree

from turbine import errors

DENSE_HINT = "use dense tensors in the model and its arguments, as x.to_dense() makes them"
PADDED_HINT = (
    "use padded tensors in the model and its arguments, as torch.nested.to_padded_tensor(x, 0.0) "
    "makes them"
)


def check_dense(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise for the first argument, parameter or buffer that is sparse or nested."""
    for name, value in (*_arguments(model, args, kwargs), *_weights(model)):
        fault = storage_fault(value)
        if fault is not None:
            fact, hint = fault
            raise errors.UnsupportedOp(f"{name} {fact}", where=errors.user_line(), hint=hint)


def storage_fault(value: Tensor) -> tuple[str, str] | None:
    """Why compiled code cannot take a tensor, with a hint; None for a dense one."""
    if value.is_nested:
        return "is a nested tensor, compiled code takes dense tensors", PADDED_HINT
    if value.layout is not torch.strided:
        return f"has layout {value.layout}, compiled code takes dense tensors", DENSE_HINT
    return None


def _arguments(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    for place, value in enumerate(args):
        for path, leaf in _tensors(value):
            yield f"argument {_name(model, place)}{path}", leaf
    for name, value in kwargs.items():
        for path, leaf in _tensors(value):
            yield f"argument {name}{path}", leaf


def _tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a nested value, each with its place in it."""
    for path, leaf in torch_pytree.tree_flatten_with_path(value)[0]:
        if isinstance(leaf, Tensor):
            yield torch_pytree.keystr(path), leaf


def _name(model: nn.Module, place: int) -> str:
    """The name of a positional argument."""
    try:
        parameters = [*inspect.signature(model.forward).parameters.values()]
    # Functions of C have no signature.
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return names[place] if place < len(names) else f"args[{place}]"


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"parameter {name}", value) for name, value in model.named_parameters())
    yield from ((f"buffer {name}", value) for name, value in model.named_buffers())
