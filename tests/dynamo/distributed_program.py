"""The program that each process of test_distributed.py runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from turbine.dynamo import records

STEPS, BATCH, SIZE = 6, 8, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.second = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.tanh(self.first(x)))
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.below = Block()
        self.above = Block()

    def forward(self, x: Tensor) -> Tensor:
        x = self.above(self.below(x))
        return x


def net() -> Net:
    """The same weights in every process."""
    torch.manual_seed(0)
    return Net()


def train(model: nn.Module, call: Callable[[Tensor], Tensor], rank: int, world: int) -> Any:
    """The loss of each step on this process's share of the data, and the weights in the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, SIZE, generator=random)
        share = x.chunk(world)[rank]
        optimizer.zero_grad()
        loss = F.mse_loss(call(share), share.sin())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: whole(weight) for name, weight in model.named_parameters()}


def whole(weight: Tensor) -> Tensor:
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach()


def replicated() -> Any:
    model = net()
    call = torch.compile(DistributedDataParallel(model), backend="turbine")
    return train(model, call, distributed.get_rank(), distributed.get_world_size())


def sharded() -> Any:
    model = net()
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in (model.below, model.above, model):
        fully_shard(block, mesh=mesh)
    call = torch.compile(model, backend="turbine")
    return train(model, call, distributed.get_rank(), distributed.get_world_size())


def with_collectives(x: Tensor) -> Tensor:
    """Ops around collectives, in one graph."""
    x = torch.tanh(x * 2 + 1)
    total = x.clone()
    distributed.all_reduce(total)
    total = torch.tanh(total * 3 - 1)
    largest = total.clone()
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    x = torch.tanh(x + largest - 2)
    return x


def collectives() -> Any:
    x = torch.arange(6.0) * (distributed.get_rank() + 1)
    return torch.compile(with_collectives, backend="turbine")(x), with_collectives(x)


JOBS = {"replicated": replicated, "sharded": sharded, "collectives": collectives}


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    try:
        outcomes = {name: outcome(job) for name, job in JOBS.items()}
        torch.save(outcomes, folder / f"{distributed.get_rank()}.pt")
    finally:
        distributed.destroy_process_group()


def outcome(job: Callable[[], Any]) -> Any:
    """The result of a job, its number of compiled parts, and its fallbacks."""
    with records.collect() as heard:
        result = job()
    parts = [part for record in heard for part in record.parts]
    left = [op.op for record in heard for op in record.left]
    return result, sum(part.compiled is not None for part in parts), left


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # Threads of gloo may abort a process that finalizes; examples/train_distributed.py says why.
    os._exit(0)
