"""Export training: steps of an optimizer, evaluation and prediction as one artifact."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from turbine import errors
from turbine.aot.exporter import output_of
from turbine.aot.output import ExportOutput
from turbine.capture.export_errors import export_error
from turbine.capture.learning_rates import simulate
from turbine.capture.model import capture
from turbine.capture.optimizer_step import CannotShare
from turbine.capture.program import Program
from turbine.capture.training_step import ModelLoss, Options, Trainer, trace_entry
from turbine.capture.weights import share_weights
from turbine.library.random import STREAM


def export_training_step(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    /,
    *,
    optimizer: Optimizer,
    args: tuple[Any, ...],
    predict_args: tuple[Any, ...] | None = None,
    dynamic_shapes: Any = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    scheduler: LRScheduler | None = None,
    scheduler_steps: int = 10_000,
    skip_nonfinite: bool = False,
    grad_scaler: GradScaler | None = None,
    seed: int = 0,
    module_name: str | None = None,
) -> ExportOutput:
    """Export a training step: forward, backward and update, with all of their state.

    The artifact has these entry points over one copy of the weights:

    - `train_step(*args)` updates the weights, buffers and the optimizer's state, and returns the
      loss. With `accumulate=n` every n-th call updates.
    - `evaluate(*args)` returns the loss, `predict(*inputs)` the model's results, both in
      evaluation mode.
    - `gradients(*args)` returns the loss and a dict of gradients by name, `apply(gradients)`
      updates the weights with such a dict: what lies between is yours, such as an all-reduce.

    Args:
        model: the model; it is left as it is, and so are its modes.
        loss_fn: called as `loss_fn(model(*inputs), target)`, where the last of `args` is the
            target. A function whose first parameter is called `model` is called as
            `loss_fn(model, *args)`.
        optimizer: one of torch.optim's with the model's parameters, or one of your own. Parameters
            that it does not have stay as they are. Its state is exported too.
        args: an example batch.
        predict_args: example arguments of `predict`, which are the first ones of `args` unless
            given; their sizes are fixed then. With `()` there is no `predict`.
        dynamic_shapes: which sizes may vary, as torch.export takes it, for the example batch.
        clip_grad_norm: the norm to which gradients are scaled down.
        accumulate: how many batches an update averages the gradients of.
        scheduler: a learning-rate scheduler that is stepped after each update.
        scheduler_steps: for how many updates its rates are exported; the last one stays.
        skip_nonfinite: make no update where a gradient is inf or nan, and count such steps in
            `artifact.state["trainer.skipped"]`. The buffers of the model, such as the statistics
            of a batch norm, stay as they were before such a batch.
        grad_scaler: how the loss is scaled, for `torch.autocast("cpu", torch.float16)` in the loss:
            `torch.amp.GradScaler("cpu")`. The factor is `artifact.state["trainer.loss_scale"]`;
            steps with inf or nan are skipped. As in PyTorch they update the model's buffers,
            unless `skip_nonfinite` is set. Losses and gradients are returned unscaled.
        seed: the seed of dropout and other random ops. Numbers depend on it and on how many were
            drawn before, not on the CPU, and are not those that PyTorch draws.
        module_name: what IREE's tools call the module; "module" unless given.

    >>> import torch, turbine
    >>> model = torch.nn.Linear(4, 2)
    >>> step = turbine.aot.export_training_step(
    ...     model,
    ...     torch.nn.MSELoss(),
    ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     args=(torch.ones(3, 4), torch.zeros(3, 2)),
    ... )
    >>> artifact = step.compile()
    >>> first, second = (artifact.train_step(torch.ones(3, 4), torch.zeros(3, 2)) for _ in range(2))
    >>> bool(second < first)
    True
    """
    check_step(model, args, accumulate)
    # Also true of nan.
    if clip_grad_norm is not None and not clip_grad_norm >= 0:
        raise errors.ExportError(
            f"clip_grad_norm is {clip_grad_norm}", hint="use a norm of 0 or more, or None"
        )
    rates = () if scheduler is None else simulate(scheduler, optimizer, scheduler_steps)
    options = Options(clip_grad_norm, accumulate, skip_nonfinite, rates, seed, grad_scaler)
    try:
        trainer = Trainer(model, loss_fn, STREAM, optimizer, options)
        captured = _capture_all(trainer, args, dynamic_shapes, predict_args)
    except CannotShare:
        trainer = Trainer(model, loss_fn, STREAM, optimizer, options, shares_steps=False)
        captured = _capture_all(trainer, args, dynamic_shapes, predict_args)
    output = output_of(share_weights(captured), module_name or "module", model)
    return replace(output, training={"accumulate": accumulate, "shared": trainer.shared})


def _capture_all(
    trainer: Trainer,
    args: tuple[Any, ...],
    dynamic_shapes: Any,
    predict_args: tuple[Any, ...] | None,
) -> dict[str, Program]:
    names = name_arguments(trainer, len(args))
    batch = Arguments(args, names, by_name(dynamic_shapes, names))
    if predict_args is None:
        inputs = batch.first(_count_inputs(trainer, len(args)))
    else:
        named = _parameters(trainer.model.forward)
        inputs = Arguments(predict_args, _fill_names(named, len(predict_args)), None)
    steps: dict[str, tuple[Step, Arguments]] = {
        "train_step": (trainer.train_step, batch),
        "evaluate": (trainer.evaluate, batch),
        "gradients": (trainer.gradients, batch),
    }
    if inputs.values:
        steps["predict"] = (trainer.predict, inputs)
    if trainer.options.accumulate > 1:
        steps["accumulate"] = (trainer.accumulate, batch)
    captured = {name: _capture(trainer, *step) for name, step in steps.items()}
    values = trainer.root.values()
    grads = {name: torch.zeros_like(values[name]) for name in trainer.reached}
    captured["apply"] = _capture(
        trainer,
        lambda values, given: trainer.apply(values, given[0]),
        Arguments((grads,), ["gradients"], None),
    )
    return captured


Step = Callable[[Mapping[str, Tensor], Sequence[Any]], Any]


@dataclass(frozen=True)
class Arguments:
    """Example arguments of an entry point, their names, and their dynamic sizes by name."""

    values: tuple[Any, ...]
    names: Sequence[str]
    dynamic_shapes: dict[str, Any] | None

    def first(self, count: int) -> Arguments:
        """The first arguments."""
        names = self.names[:count]
        sizes = self.dynamic_shapes
        return Arguments(
            self.values[:count], names, None if sizes is None else {n: sizes[n] for n in names}
        )

    @property
    def signature(self) -> inspect.Signature:
        """The signature of a function with these arguments."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.names])


def _capture(trainer: Trainer, step: Step, given: Arguments) -> Program:
    try:
        entry = trace_entry(
            trainer.root,
            step,
            given.values,
            given.signature,
            given.dynamic_shapes,
            otherwise=trainer.loss_fn,
        )
    except (errors.TurbineError, CannotShare):
        raise
    except Exception as error:
        if step == trainer.predict and isinstance(error, TypeError):
            raise errors.ExportError(
                f"cannot predict with {', '.join(given.names)}: {error}",
                hint="pass example arguments of the model, predict_args=(x,)",
            ) from error
        raise export_error(type(trainer.model).__name__, error) from error
    with torch.no_grad():
        return capture(entry, given.values, dynamic_shapes=given.dynamic_shapes)


def check_step(model: object, args: object, accumulate: object = 1) -> None:
    """Raise for arguments that no step can be traced with."""
    if not isinstance(model, nn.Module):
        raise errors.ExportError(
            f"cannot export a {type(model).__name__}", hint="pass an nn.Module to train"
        )
    if not isinstance(args, tuple):
        raise errors.ExportError(
            f"args is a {type(args).__name__}, expected a tuple", hint="write args=(x, y)"
        )
    if type(accumulate) is not int or accumulate < 1:
        raise errors.ExportError(f"accumulate is {accumulate!r}", hint="use 1 or more batches")


def name_arguments(of: ModelLoss, count: int) -> list[str]:
    """The names of the arguments of a step, from the loss or from the model and the loss."""
    of_loss = _parameters(of.loss_fn)
    if of.takes_model:
        names = of_loss[1:]
    else:
        names = [*_parameters(of.model.forward)[: count - 1], *of_loss[1:2]]
    return _fill_names(names, count)


def _fill_names(names: Sequence[str], count: int) -> list[str]:
    """As many names, all different."""
    given = [*names[:count], *(f"arg{place}" for place in range(len(names), count))]
    return given if len(set(given)) == count else [f"arg{place}" for place in range(count)]


def _parameters(function: Callable[..., Any]) -> list[str]:
    plain = function.forward if isinstance(function, nn.Module) else function
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(plain).parameters.values()
    return [parameter.name for parameter in found if parameter.kind in positional]


def _count_inputs(trainer: Trainer, count: int) -> int:
    """How many arguments of a step the model takes."""
    if not trainer.takes_model:
        return count - 1
    return min(count, len(_parameters(trainer.model.forward)))


def by_name(dynamic_shapes: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """The dynamic shapes of arguments by their names."""
    if dynamic_shapes is None or isinstance(dynamic_shapes, dict):
        return None if dynamic_shapes is None else {n: dynamic_shapes.get(n) for n in names}
    return dict(zip(names, dynamic_shapes, strict=True))
