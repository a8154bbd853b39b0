"""Read checkpoints of training artifacts into PyTorch, and write them from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from turbine import dtypes, errors
from turbine.capture.optimizer_step import initial_state
from turbine.capture.training_step import OPTIMIZER, TRAINER
from turbine.lower.weights import raw_bytes
from turbine.runtime import checkpoint
from turbine.runtime.archive import open_archive
from turbine.runtime.entries import Entry


def read_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Set a model, and its optimizer, to the state that `artifact.save_checkpoint` wrote.

    Frozen parameters are not in the file and stay as they are. Nothing is changed if the file is
    of another model. Learning rates are those of the next step, as a scheduler leaves them. To go
    on with a scheduler, make it before, since it sets the rates of the optimizer, and load its
    state.

    >>> import torch, turbine
    >>> model = torch.nn.Linear(4, 2)
    >>> turbine.aot.read_checkpoint("c.safetensors", model)  # doctest: +SKIP
    """
    values = {key: _tensor(entry) for key, entry in open_archive(Path(path)).entries.items()}
    own = {n: v for n, v in values.items() if not n.startswith((f"{OPTIMIZER}.", f"{TRAINER}."))}
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    _check(path, held, own)
    state = {} if optimizer is None else _optimizer_state(path, model, optimizer, values)
    with torch.no_grad():
        for name, value in own.items():
            held[name].copy_(value)
    if optimizer is None:
        return
    for parameter, found in state.items():
        optimizer.state[parameter].update(found)
    for index, group in enumerate(optimizer.param_groups):
        rate = values.get(f"{TRAINER}.learning_rate.{index}")
        if rate is not None:
            group["lr"] = rate.to(group["lr"]) if isinstance(group["lr"], Tensor) else float(rate)


def write_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Write the state of a model and its optimizer for `artifact.load_checkpoint`.

    The artifact goes on from there; its learning rate is that of the optimizer.
    """
    names = _names(model)
    values: dict[str, Tensor] = {name: parameter.detach() for parameter, name in names.items()}
    values |= dict(model.named_buffers())
    steps = [0.0]
    for name, state in initial_state(optimizer, names).items():
        for key, value in state.items():
            values[f"{OPTIMIZER}.{name}.{key}"] = value
            steps += [float(value)] if key == "step" and value.numel() == 1 else []
    for index, group in enumerate(optimizer.param_groups):
        rate = torch.as_tensor(group["lr"], dtype=torch.float64)
        values[f"{TRAINER}.learning_rate.{index}"] = rate.detach().reshape(())
    values[f"{TRAINER}.step"] = torch.tensor(int(max(steps)))
    checkpoint.write(Path(path), [_entry(name, value) for name, value in values.items()])


def _tensor(entry: Entry) -> Tensor:
    row = dtypes.BY_NAME[str(entry.dtype)]
    if not entry.data.nbytes:
        return torch.empty(entry.shape or (), dtype=row.torch)
    flat = torch.frombuffer(bytearray(entry.data), dtype=torch.uint8).view(row.torch)
    return flat.reshape(entry.shape or ())


def _entry(name: str, value: Tensor) -> Entry:
    row = dtypes.of_torch(value.dtype)
    return Entry(name, raw_bytes(value).data, row.name, tuple(value.shape))


def _check(path: Any, held: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    problems = [f"it has {name}, and the model has not" for name in own if name not in held]
    problems += [
        f"{name} is {list(value.shape)}, and the model has {list(held[name].shape)}"
        for name, value in own.items()
        if name in held and value.shape != held[name].shape
    ]
    if problems:
        more = f" and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        raise errors.ParameterError(
            f"the checkpoint is of another model: {'; '.join(problems[:_MOST])}{more}",
            where=str(path),
            hint="read it into a model of the class that was exported",
        )


_MOST = 5


def _names(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def _optimizer_state(
    path: Any, model: nn.Module, optimizer: Optimizer, values: dict[str, Tensor]
) -> dict[Tensor, dict[str, Tensor]]:
    names = _names(model)
    expected = initial_state(optimizer, names)
    found: dict[Tensor, dict[str, Tensor]] = {}
    for parameter, name in names.items():
        keys = {key: f"{OPTIMIZER}.{name}.{key}" for key in expected.get(name, {})}
        missing = [full for full in keys.values() if full not in values]
        if missing and len(missing) < len(keys):
            raise errors.ParameterError(
                f"the checkpoint lacks {missing[0]}",
                where=str(path),
                hint=f"make the {type(optimizer).__name__} with the options that were exported",
            )
        if not missing and keys:
            found[parameter] = {key: values[full] for key, full in keys.items()}
    if any(expected.values()) and not found:
        raise errors.ParameterError(
            f"the checkpoint has no state of {type(optimizer).__name__}",
            where=str(path),
            hint="use an optimizer of the class that was exported",
        )
    return found
