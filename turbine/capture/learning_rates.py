"""Learning rates of a scheduler, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from turbine import errors


def simulate(scheduler: LRScheduler, optimizer: Optimizer, steps: int) -> list[list[float]]:
    """The learning rates of each group for some steps; both are left as they were."""
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise errors.ExportError(
            f"a {type(scheduler).__name__} cannot be exported",
            hint="use a scheduler whose rates depend on the count of steps alone",
        )
    if scheduler.optimizer is not optimizer:
        raise errors.ExportError(
            "the scheduler belongs to another optimizer",
            hint="make it with the optimizer that is exported",
        )
    groups, before = optimizer.param_groups, [_numbers(group) for group in optimizer.param_groups]
    known, count = scheduler.state_dict(), getattr(optimizer, "_opt_called", None)
    steps = min(steps, getattr(scheduler, "total_steps", None) or steps)
    rates: list[list[float]] = [[] for _ in groups]
    try:
        optimizer._opt_called = True  # type: ignore[attr-defined]  # PyTorch warns without it
        for step in range(steps):
            for group, found in zip(groups, rates, strict=True):
                found.append(float(group["lr"]))
            if step + 1 < steps:
                scheduler.step()
            for group, held in zip(groups, before, strict=True):
                _check_others(_numbers(group), held)
    finally:
        for group, held in zip(groups, before, strict=True):
            group.update(held)
        scheduler.load_state_dict(known)
        optimizer._opt_called = count  # type: ignore[attr-defined]
    return rates


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """The options of a group; a rate in a tensor is copied, since schedulers write to it."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


def _check_others(after: dict[str, Any], before: dict[str, Any]) -> None:
    for key, value in after.items():
        if key != "lr" and value != before[key]:
            raise errors.ExportError(
                f"the scheduler changes {key}, not only the learning rate",
                hint="for OneCycleLR and CyclicLR, pass cycle_momentum=False",
            )
