"""Export the forward and the backward pass of a model, for an optimizer of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from turbine import errors
from turbine.aot.exporter import output_of
from turbine.aot.output import ExportOutput
from turbine.aot.training import Arguments, by_name, check_step, name_arguments
from turbine.capture.export_errors import export_error
from turbine.capture.joint import Joint, trace_joint
from turbine.capture.model import capture
from turbine.capture.training_step import ModelLoss, Root, trace_entry
from turbine.capture.weights import share_weights
from turbine.library.random import STREAM


def export_joint(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    /,
    *,
    args: tuple[Any, ...],
    dynamic_shapes: Any = None,
    seed: int = 0,
    module_name: str | None = None,
) -> ExportOutput:
    """Export the loss of a model and its gradients as two entry points.

    The artifact has these entry points over one copy of the weights:

    - `forward(*args)` returns the loss, and a tuple of what the backward pass needs. Buffers, such
      as batch statistics, are updated.
    - `backward(saved)` returns `{"parameters": {name: gradient}, "inputs": {name: gradient}}`.
    - `set_parameters(parameters)` sets all parameters that have a gradient, by a dict of names.

    The partitioner of torch.compile chooses what is saved and what is computed again. The
    `descriptors` of the export say what each result is.

    Args:
        model: the model; it is left as it is, and so are its modes.
        loss_fn: as for `export_training_step`.
        args: an example batch. A tensor that requires a gradient gets one, under "inputs".
        dynamic_shapes: which sizes may vary, as torch.export takes it.
        seed: the seed of dropout and other random ops.
        module_name: what IREE's tools call the module; "module" unless given.

    >>> import torch, turbine
    >>> model = torch.nn.Linear(4, 2)
    >>> batch = torch.ones(3, 4), torch.zeros(3, 2)
    >>> out = turbine.aot.export_joint(model, torch.nn.MSELoss(), args=batch)
    >>> out.descriptors["backward"]
    ('gradient of parameter weight', 'gradient of parameter bias')
    >>> artifact = out.compile()
    >>> loss, saved = artifact.forward(*batch)
    >>> artifact.backward(saved)["parameters"]["weight"].shape
    torch.Size([2, 4])
    """
    check_step(model, args)
    loss = ModelLoss(model, loss_fn, STREAM)
    names = name_arguments(loss, len(args))
    batch = Arguments(args, names, by_name(dynamic_shapes, names))
    try:
        joint = trace_joint(loss, args, batch.signature, batch.dynamic_shapes, seed)
    except errors.TurbineError:
        raise
    except Exception as error:
        raise export_error(type(model).__name__, error) from error
    with torch.no_grad():
        detached = tuple(_detach(one) for one in args)
        captured = {
            "forward": capture(joint.forward, detached, dynamic_shapes=batch.dynamic_shapes),
            "backward": capture(
                joint.backward, (joint.saved,), dynamic_shapes={"saved": joint.saved_shapes}
            ),
            "set_parameters": capture(*_setter(joint)),
        }
    output = output_of(share_weights(captured), module_name or "module", model)
    return replace(output, descriptors=_describe(joint))


def _detach(leaf: Any) -> Any:
    return torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, leaf)


def _setter(joint: Joint) -> tuple[nn.Module, tuple[Any, ...]]:
    """A module that writes parameters, and an example of its argument."""
    assert isinstance(joint.forward, Root)
    values = joint.forward.values()

    def write(held: Mapping[str, Tensor], given: Any) -> None:
        for name, value in given[0].items():
            held[name].copy_(value)

    example = {name: torch.zeros_like(values[name]) for name in joint.parameters}
    given = Arguments((example,), ["parameters"], None)
    return trace_entry(Root(values), write, given.values, given.signature), given.values


def _describe(joint: Joint) -> dict[str, tuple[str, ...]]:
    saved = (f"saved {place}" for place in range(len(joint.saved)))
    return {
        "forward": ("loss", *saved),
        "backward": (
            *(f"gradient of parameter {name}" for name in joint.parameters),
            *(f"gradient of input {name}" for name in joint.inputs),
        ),
        "set_parameters": (),
    }
