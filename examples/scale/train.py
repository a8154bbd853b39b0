"""Train on several machines, and continue from the last checkpoint when a process is lost.

On each of two machines, with the name of the first one as the meeting point:

torchrun --nnodes 2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d \
    --rdzv-endpoint first:29500 --rdzv-id mlp examples/scale/train.py --folder /shared/mlp

The folder is on a file system that all machines share. A step has the same batch whatever the
number of processes, so losses are those of one process, after restarts and with fewer machines too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import turbine

BATCH, WIDTH, CLASSES = 64, 32, 8
KEPT = 2  # checkpoints


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and losses")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DDP")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for others")
    parser.add_argument("--backend", choices=("turbine", "eager"), default="turbine")
    options = parser.parse_args(arguments)
    # Without a time limit, a machine that is cut off keeps the others waiting for half an hour.
    distributed.init_process_group("gloo", timeout=timedelta(seconds=options.patience))
    if BATCH % distributed.get_world_size():
        parser.error(f"{distributed.get_world_size()} processes do not divide {BATCH} rows")
    try:
        train(options)
    finally:
        distributed.destroy_process_group()
    return 0


def train(options: argparse.Namespace) -> None:
    model = make_model(options.sharded)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_of = torch.compile(compute_loss, backend=options.backend)
    first = restore(model, optimizer, options.folder)
    for step in range(first, options.steps):
        optimizer.zero_grad()
        loss = loss_of(model, *make_batch(step))
        loss.backward()
        optimizer.step()
        record(options.folder, step, loss.detach())
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            save(model, optimizer, options.folder, step + 1)
    if distributed.get_rank() == 0:
        print(f"{turbine.counters()['ops_compiled']} ops were compiled")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.gelu(self.linear(x))
        return x


class Classifier(nn.Module):
    # A class of its own: torch.compile skips nn.Sequential inside of DDP.
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.scores = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.scores(x)
        return x


def make_model(sharded: bool) -> nn.Module:
    """The same weights in every process: a copy each (DDP), or a share each (FSDP2)."""
    torch.manual_seed(0)
    model = Classifier()
    if not sharded:
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def compute_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def make_batch(step: int) -> tuple[Tensor, Tensor]:
    """This process's share of the batch of a step, which depends on nothing but the step."""
    patterns = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(1 + step)
    y = torch.randint(CLASSES, (BATCH,), generator=random)
    x = patterns[y] + 3 * torch.randn(BATCH, WIDTH, generator=random)
    rank, count = distributed.get_rank(), distributed.get_world_size()
    return x.chunk(count)[rank], y.chunk(count)[rank]


def record(folder: Path, step: int, loss: Tensor) -> None:
    """Append the mean loss of all processes to a file; a step that is repeated is there twice."""
    distributed.all_reduce(loss)
    if distributed.get_rank() == 0:
        line = {"step": step, "loss": loss.item() / distributed.get_world_size()}
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "losses.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, step: int) -> None:
    """Write a checkpoint: it has its name when all processes have written their part."""
    draft = folder / f"writing-{step}"
    checkpoint.save(state_of(model, optimizer), checkpoint_id=draft)
    if distributed.get_rank() == 0:
        target = folder / f"step-{step:08}"
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
        for old in checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old)
    distributed.barrier()


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Load the newest checkpoint, if there is one; the step to go on with."""
    found = checkpoints(folder)
    if not found:
        return 0
    state = state_of(model, optimizer)
    checkpoint.load(state, checkpoint_id=found[-1])
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    if distributed.get_rank() == 0:
        print(f"{distributed.get_world_size()} processes go on from {found[-1].name}", flush=True)
    return int(found[-1].name.removeprefix("step-"))


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


if __name__ == "__main__":
    code = main()
    # Threads of gloo may abort a process that finalizes; examples/train_distributed.py says why.
    sys.stdout.flush()
    os._exit(code)
