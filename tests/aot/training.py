"""A small model, its batches and its training step, for tests of training ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import Optimizer

import turbine
from turbine.runtime.artifact import Artifact

Parameters = Sequence[nn.Parameter]


def mlp(inputs: int = 8, hidden: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 4))


def batches(count: int, rows: int = 6, inputs: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(rows, inputs, generator=generator),
            torch.randint(4, (rows,), generator=generator),
        )
        for _ in range(count)
    ]


def adamw(parameters: Parameters) -> Optimizer:
    return optim.AdamW(parameters, lr=1e-2)


def eager_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def check_weights(artifact: Artifact, model: nn.Module, tolerance: float = 1e-5) -> None:
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            artifact.state[name], parameter.detach(), atol=tolerance, rtol=1e-4, msg=name
        )


def numbers(artifact: Artifact) -> dict[str, Any]:
    return {name: numpy.asarray(artifact.state[name]).tolist() for name in artifact.state}


@cache
def exported_mlp() -> turbine.aot.ExportOutput:
    model, rows = mlp(), torch.export.Dim("rows", min=2)
    return turbine.aot.export_training_step(
        model,
        nn.CrossEntropyLoss(),
        optimizer=adamw([*model.parameters()]),
        args=batches(1)[0],
        dynamic_shapes=({0: rows}, {0: rows}),
    )
