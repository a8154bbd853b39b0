"""Warn about models exported in training mode, with active dropout or batch statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from turbine import errors

# Parameters of PyTorch's ops for training mode and the dropout probability.
_TRAINING = ("train", "training")
_DROPPED = ("p", "dropout", "dropout_p")


def warn_of_training_mode(model: torch.nn.Module, program: ExportedProgram) -> None:
    """Name the modules whose ops behave as in training because the model is in training mode."""
    nodes = [node for node in program.graph.nodes if _trains(node)]
    modules = dict(model.named_modules())
    names = {_owner(node): node for node in nodes}
    found = {name: node for name, node in names.items() if _is_training(modules, name)}
    if not found:
        return
    listed = ", ".join(_describe(modules, name) for name in found)
    fact = f"{type(model).__name__} is in training mode, which changes what these do: {listed}"
    hint = "call model.eval() before the export, so that dropout and batch statistics are left out"
    where = errors.line_of_trace(next(iter(found.values())).stack_trace)
    message = str(errors.TurbineError(fact, where=where, hint=hint))
    errors.warn(message, errors.TrainingModeWarning)


def _trains(node: fx.Node) -> bool:
    """Whether an op drops elements, or normalizes with the statistics of its batch."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    dropped = [given[name] for name in _DROPPED if name in given]
    if any(name in given for name in _TRAINING):
        is_on = any(given.get(name) is True for name in _TRAINING)
        return is_on and (not dropped or bool(dropped[0]))
    return "dropout_p" in given and bool(given["dropout_p"])


def _owner(node: fx.Node) -> str:
    """The path of the innermost module that called an op."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    return [path for path, _ in stack.values()][-1] if stack else ""


def _is_training(modules: dict[str, torch.nn.Module], name: str) -> bool:
    return name in modules and modules[name].training


def _describe(modules: dict[str, torch.nn.Module], name: str) -> str:
    kind = type(modules[name]).__name__
    return f"{name} ({kind})" if name else kind
